"""The derived columns: what a trajectory and a group have become by what was appended about them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import sqlalchemy as sa

from stepwell.pool import bulk, readiness
from stepwell.pool.prepared import Among, LookUp, Prepared
from stepwell.pool.readiness import Completion, Facts
from stepwell.pool.schema import annotations, deliveries, frontiers, groups, tags, trajectories, unsettled
from stepwell.types import Annotation, Status, Step, Verdict

_waiting = LookUp(sa.select(groups.c.cursor, groups.c.size).where(unsettled), groups.c.cursor)
_complete = LookUp(
    sa.select(
        trajectories.c.group_cursor,
        trajectories.c.cursor,
        trajectories.c.complete_cursor,
        trajectories.c.policy_version_min,
    ).where(trajectories.c.complete_cursor.is_not(None)),
    trajectories.c.group_cursor,
)
_set_group = Prepared(
    sa.update(groups).where(groups.c.cursor == sa.bindparam("of")), ["of", "ready_cursor", "ready_version"]
)
_offer_again = Among(sa.delete(deliveries).where(deliveries.c.lease_id.is_(None)), deliveries.c.unit_cursor)
_said = LookUp(
    sa.select(
        annotations.c.trajectory_cursor,
        annotations.c.step_cursor,
        annotations.c.kind,
        annotations.c.name,
        annotations.c.value,
    )
    .where(sa.or_(*(annotations.c.kind == sa.literal_column(f"'{kind}'") for kind in readiness.STANDING)))
    .order_by(annotations.c.cursor),
    annotations.c.trajectory_cursor,
)


@dataclass(slots=True)
class TrajectoryState:
    """The derived columns of one trajectory, folded on as records are admitted."""

    cursor: int
    group_cursor: int | None
    channel: str
    status: Status = "open"
    end_cursor: int | None = None
    reward_cursor: int | None = None
    complete_cursor: int | None = None
    reward: float | None = None
    verdict: Verdict = "clear"
    steps: int = 0
    next_index: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    policy_version_min: int | None = None
    policy_version_max: int | None = None
    facts: Facts | None = None
    """What holds of it; None: not loaded, because this batch says nothing new."""
    grown: bool = False
    """Whether this batch adds steps."""
    told: bool = False
    """Whether this batch says how it ended, or changes what holds of it."""
    judged: bool = False
    """Whether this batch changes what holds of it."""

    def add_step(self, step: Step) -> None:
        """Count a step."""
        self.grown = True
        self.steps += 1
        self.next_index = max(self.next_index, step.index + 1)
        self.prompt_tokens += len(step.prompt_ids)
        self.response_tokens += len(step.response_ids)
        lowest, highest = self.policy_version_min, self.policy_version_max
        if lowest is None or step.policy_version_min < lowest:
            self.policy_version_min = step.policy_version_min
        if highest is None or step.policy_version_max > highest:
            self.policy_version_max = step.policy_version_max

    def add_annotation(self, note: Annotation, step_cursor: int | None, cursor: int) -> None:
        """Fold a fact in; what follows from several is worked out by `settle`."""
        if note.kind == "end":
            self.told = True
            self.status = readiness.status_of([note])
            self.end_cursor = self.end_cursor or cursor
        elif note.kind == "reward":
            self.reward_cursor = self.reward_cursor or cursor
        if note.kind in readiness.STANDING:
            self.told = self.judged = True
            self.facts = self.facts or Facts()
            self.facts.add(step_cursor, note.kind, note.name, note.value)

    def settle(self) -> None:
        """Work out what follows from all that was folded in."""
        if self.judged and self.facts is not None:
            self.reward, self.verdict = self.facts.reward, self.facts.verdict
        if self.told:
            self.complete_cursor = readiness.completed_at(self.status, self.end_cursor, self.reward_cursor)

    def derived(self) -> tuple[object, ...]:
        """The values of `DERIVED`."""
        self.settle()
        values: tuple[object, ...] = _derived(self)
        return values


_OF_NOTES: Final = ("status", "end_cursor", "reward_cursor", "complete_cursor", "reward", "verdict")
_OF_STEPS: Final = (
    *("steps", "next_index", "prompt_tokens", "response_tokens"),
    *("policy_version_min", "policy_version_max"),
)
DERIVED: Final = (*_OF_NOTES, *_OF_STEPS)
"""The columns of a trajectory that later records change."""
_derived: Final = attrgetter(*DERIVED)
_noted: Final = attrgetter("cursor", *_OF_NOTES)
_grown: Final = attrgetter("cursor", *_OF_STEPS)


def load_facts(connection: sa.Connection, states: Collection[TrajectoryState]) -> None:
    """What holds of stored trajectories, before this batch adds to it."""
    by_cursor = {state.cursor: state for state in states}
    for state in states:
        state.facts = Facts()
    for row in _said.rows(connection, list(by_cursor)):
        facts = by_cursor[row.trajectory_cursor].facts
        if facts is not None:
            facts.add(row.step_cursor, row.kind, row.name, row.value)


def update(connection: sa.Connection, states: Sequence[TrajectoryState], new: Collection[int]) -> None:
    """Bring the rows of `states` up to date; those with a cursor in `new` are already."""
    stored = [state for state in states if state.cursor not in new]
    for state in stored:
        state.settle()
    # Apart, so that an index is only touched by what it is about.
    bulk.update(connection, trajectories, ("cursor", *_OF_STEPS), [_grown(state) for state in stored if state.grown])
    bulk.update(connection, trajectories, ("cursor", *_OF_NOTES), [_noted(state) for state in stored if state.told])
    judged = [state for state in states if state.judged]
    if judged:
        _retag(connection, judged)
        _reconsider(connection, [state for state in judged if state.cursor not in new])
    _mark_ready(connection, states)


def rewrite(connection: sa.Connection, state: TrajectoryState) -> None:
    """Write all that is derived of a trajectory, from a state that was folded of all its records."""
    bulk.update(connection, trajectories, ("cursor", *DERIVED), [(state.cursor, *state.derived())])
    connection.execute(sa.delete(tags).where(tags.c.trajectory_cursor == state.cursor))
    _retag(connection, [state])


def _retag(connection: sa.Connection, states: Sequence[TrajectoryState]) -> None:
    tagged = [state for state in states if state.facts and state.facts.has_tags]
    if tagged:
        connection.execute(sa.delete(tags).where(tags.c.trajectory_cursor.in_([state.cursor for state in tagged])))
    rows = [
        {"tag": tag, "trajectory_cursor": state.cursor} for state in tagged if state.facts for tag in state.facts.tags
    ]
    if rows:
        connection.execute(sa.insert(tags), rows)


def _reconsider(connection: sa.Connection, states: Sequence[TrajectoryState]) -> None:
    """What consumers had dropped they may want now: something else holds of it."""
    units = {state.cursor for state in states} | {state.group_cursor for state in states if state.group_cursor}
    if units and _offer_again.execute(connection, list(units)).rowcount:
        connection.execute(sa.update(frontiers).values(cursor=0))


def _mark_ready(connection: sa.Connection, states: Iterable[TrajectoryState]) -> None:
    """Groups that these trajectories completed."""
    complete = [state for state in states if state.complete_cursor is not None]
    within = {state.group_cursor for state in complete if state.group_cursor is not None}
    sizes = {row.cursor: row.size for row in _waiting.rows(connection, list(within))}
    completions = completions_of(connection, list(sizes))
    chosen = {group: readiness.handed_over(size, completions[group]) for group, size in sizes.items()}
    mark_ready(connection, [ready_row(of, members, members[-1].cursor) for of, members in chosen.items() if members])


def mark_ready(connection: sa.Connection, ready: Sequence[dict[str, object]]) -> None:
    """Write what `ready_row` gave."""
    if ready:
        _set_group.execute(connection, ready)


def ready_row(group: int, members: Sequence[Completion], cursor: int | None) -> dict[str, object]:
    """A group that is ready with `members` since `cursor`; None: it is not."""
    versions = [done.policy_version_min for done in members if done.policy_version_min is not None]
    return {"of": group, "ready_cursor": cursor, "ready_version": min(versions, default=None)}


def completions_of(connection: sa.Connection, group_cursors: Sequence[int]) -> dict[int, list[Completion]]:
    """The complete trajectories of groups."""
    by_group: dict[int, list[Completion]] = defaultdict(list)
    for row in _complete.rows(connection, group_cursors):
        done = Completion(trajectory=row.cursor, cursor=row.complete_cursor, policy_version_min=row.policy_version_min)
        by_group[row.group_cursor].append(done)
    return by_group
