"""What becomes of records that are submitted: a verdict on each, and the rows of those that are admitted.

Everything that the verdicts of a batch depend on is looked up first, with a few SELECTs for the whole batch; then each
record is judged in memory, in order; then the rows are written with one INSERT per table.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import sqlalchemy as sa

from stepwell.errors import Conflict, InvalidRecord, NotFound, StepwellError
from stepwell.pool import codec, queries, readiness
from stepwell.pool.base import Receipt
from stepwell.pool.prepared import LookUp, Prepared
from stepwell.pool.schema import annotations, groups, meta, steps, trajectories, updates
from stepwell.types import Annotation, GroupInfo, Record, Status, Step, TrajectoryInfo, UpdateInfo

_TABLES: Final[dict[type[Record], sa.Table]] = {
    GroupInfo: groups,
    TrajectoryInfo: trajectories,
    Step: steps,
    Annotation: annotations,
    UpdateInfo: updates,
}
_PAIRS: Final = 5_000  # (trajectory, index) pairs bound per statement

_stored = {
    kind: LookUp(sa.select(table.c.id, table.c.cursor, table.c.digest), table.c.id) for kind, table in _TABLES.items()
}
_places = LookUp(sa.select(steps.c.id, steps.c.cursor, steps.c.digest, steps.c.trajectory_cursor), steps.c.id)
_by_id = LookUp(sa.select(trajectories), trajectories.c.id)
_by_cursor = LookUp(sa.select(trajectories), trajectories.c.cursor)
_waiting = LookUp(sa.select(groups.c.cursor, groups.c.size).where(groups.c.ready_cursor.is_(None)), groups.c.cursor)
_complete = LookUp(
    sa.select(
        trajectories.c.group_cursor,
        trajectories.c.cursor,
        trajectories.c.complete_cursor,
        trajectories.c.policy_version_min,
    ).where(trajectories.c.complete_cursor.is_not(None)),
    trajectories.c.group_cursor,
)
_lock_cursor = Prepared(queries.newest_cursor.with_for_update())
_set_cursor = Prepared(sa.update(meta).where(meta.c.name == "cursor"), ["value"])
_insert = {table: Prepared(sa.insert(table), list(table.c.keys())) for table in _TABLES.values()}
_set_group = Prepared(
    sa.update(groups).where(groups.c.cursor == sa.bindparam("of")), ["of", "ready_cursor", "ready_version"]
)


def append(connection: sa.Connection, records: Sequence[Record], packer: codec.StepPacker) -> list[Receipt]:
    """Append to the log within the transaction of `connection`; one receipt per record, in order.

    If it raises, the transaction must be rolled back and `packer.forget()` called.
    """
    batch = _Batch(connection, packer)
    drafts = [_drafted(record) for record in records]
    batch.look_up([draft for draft in drafts if isinstance(draft, codec.Draft)])
    receipts = [batch.judge(draft) if isinstance(draft, codec.Draft) else draft for draft in drafts]
    batch.write()
    return receipts


def _drafted(record: Record) -> codec.Draft | Receipt:
    try:
        return codec.draft(record)
    except InvalidRecord as refusal:
        return Receipt(id=record.id, cursor=None, error=refusal)


class _Stored(NamedTuple):
    """What tells a retry from a conflict."""

    cursor: int
    digest: object


@dataclass(slots=True)
class _Trajectory:
    """The derived columns of one trajectory, folded on as records are admitted."""

    cursor: int
    group_cursor: int | None
    status: Status = "open"
    end_cursor: int | None = None
    reward_cursor: int | None = None
    complete_cursor: int | None = None
    steps: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    policy_version_min: int | None = None
    policy_version_max: int | None = None

    def add_step(self, step: Step) -> None:
        self.steps += 1
        self.prompt_tokens += len(step.prompt_ids)
        self.response_tokens += len(step.response_ids)
        lowest, highest = self.policy_version_min, self.policy_version_max
        self.policy_version_min = min(step.policy_version_min, step.policy_version_min if lowest is None else lowest)
        self.policy_version_max = max(step.policy_version_max, step.policy_version_max if highest is None else highest)

    def add_annotation(self, note: Annotation, cursor: int) -> None:
        if note.kind == "end":
            self.status = readiness.status_of([note])
            self.end_cursor = self.end_cursor or cursor
        elif note.kind == "reward":
            self.reward_cursor = self.reward_cursor or cursor
        self.complete_cursor = readiness.completed_at(self.status, self.end_cursor, self.reward_cursor)

    def derived(self) -> codec.Row:
        return {name: getattr(self, name) for name in _DERIVED}


_DERIVED: Final = tuple(name for name in _Trajectory.__dataclass_fields__ if name not in ("cursor", "group_cursor"))
_set_trajectory = Prepared(
    sa.update(trajectories).where(trajectories.c.cursor == sa.bindparam("of")), ["of", *_DERIVED]
)


class _StepPlace(NamedTuple):
    """Where a step is, for annotations about it."""

    cursor: int
    trajectory_cursor: int


@dataclass
class _Batch:
    """One batch on its way into the log: what its verdicts depend on, and what it is going to write."""

    connection: sa.Connection
    packer: codec.StepPacker
    cursor: int = 0
    stored: dict[type[Record], dict[str, _Stored]] = field(default_factory=lambda: {kind: {} for kind in _TABLES})
    by_id: dict[str, _Trajectory] = field(default_factory=dict)
    by_cursor: dict[int, _Trajectory] = field(default_factory=dict)
    places: dict[str, _StepPlace] = field(default_factory=dict)
    occupied: set[tuple[int, int]] = field(default_factory=set)
    rows: dict[sa.Table, list[codec.Row]] = field(default_factory=lambda: defaultdict(list))
    touched: dict[int, _Trajectory] = field(default_factory=dict)

    def look_up(self, drafts: Sequence[codec.Draft]) -> None:
        """Load all that the verdicts depend on."""
        wanted = _mentioned(drafts)
        # Locks the counter: until this transaction ends, nobody else draws a cursor.
        self.cursor = int(_lock_cursor.execute(self.connection).fetchone()[0])
        for kind in (GroupInfo, Annotation, UpdateInfo):
            self._load_stored(kind, wanted[kind])
        self._load_steps(wanted[Step])
        self._load_trajectories(_by_id, wanted[TrajectoryInfo])
        beyond = {place.trajectory_cursor for place in self.places.values()} - self.by_cursor.keys()
        self._load_trajectories(_by_cursor, beyond)
        self._load_occupied(drafts)

    def _load_stored(self, kind: type[Record], ids: Iterable[str]) -> None:
        for row in _stored[kind].rows(self.connection, list(ids)):
            self.stored[kind][row.id] = _Stored(row.cursor, row.digest)

    def _load_steps(self, ids: Iterable[str]) -> None:
        for row in _places.rows(self.connection, list(ids)):
            self.stored[Step][row.id] = _Stored(row.cursor, row.digest)
            self.places[row.id] = _StepPlace(row.cursor, row.trajectory_cursor)

    def _load_trajectories(self, look_up: LookUp, values: Iterable[object]) -> None:
        for row in look_up.rows(self.connection, list(values)):
            state = _Trajectory(row.cursor, row.group_cursor, *(getattr(row, name) for name in _DERIVED))
            self.stored[TrajectoryInfo][row.id] = _Stored(row.cursor, row.digest)
            self.by_id[row.id] = self.by_cursor[row.cursor] = state

    def _load_occupied(self, drafts: Sequence[codec.Draft]) -> None:
        taken = [draft.record for draft in drafts if isinstance(draft.record, Step)]
        pairs = iter(
            (self.by_id[step.trajectory_id].cursor, step.index) for step in taken if step.trajectory_id in self.by_id
        )
        place = sa.tuple_(steps.c.trajectory_cursor, steps.c.position)
        while chunk := list(islice(pairs, _PAIRS)):
            found = sa.select(steps.c.trajectory_cursor, steps.c.position).where(place.in_(chunk))
            self.occupied.update((row[0], row[1]) for row in self.connection.execute(found))

    def judge(self, draft: codec.Draft) -> Receipt:
        """Admit the record, or say why not."""
        record = draft.record
        stored = self.stored[type(record)].get(record.id)
        if stored and stored.digest == draft.row["digest"]:
            return Receipt(id=record.id, cursor=stored.cursor, duplicate=True)
        if stored:
            refusal = Conflict(f"{record.id!r} is already in the pool with other content; records never change")
            return Receipt(id=record.id, cursor=None, error=refusal)
        try:
            extra = self._admit(record, self.cursor + 1)
        except StepwellError as error:
            return Receipt(id=record.id, cursor=None, error=error)
        self.cursor += 1
        self.stored[type(record)][record.id] = _Stored(self.cursor, draft.row["digest"])
        self.rows[_TABLES[type(record)]].append({"cursor": self.cursor, **draft.row, **extra})
        return Receipt(id=record.id, cursor=self.cursor)

    def _admit(self, record: Record, cursor: int) -> codec.Row:
        """The columns that depend on what is stored already. Changes nothing if it raises."""
        match record:
            case TrajectoryInfo():
                return self._admit_trajectory(record, cursor)
            case Step():
                return self._admit_step(record, cursor)
            case Annotation():
                return self._admit_annotation(record, cursor)
            case GroupInfo() | UpdateInfo():
                return {}

    def _admit_trajectory(self, info: TrajectoryInfo, cursor: int) -> codec.Row:
        group = self.stored[GroupInfo].get(info.group_id) if info.group_id is not None else None
        if group is None and info.group_id is not None:
            raise NotFound(f"trajectory {info.id!r} names the group {info.group_id!r}, which the pool does not hold")
        state = _Trajectory(cursor, group.cursor if group else None)
        self.by_id[info.id] = self.by_cursor[cursor] = self.touched[cursor] = state
        return {"group_cursor": state.group_cursor}

    def _admit_step(self, step: Step, cursor: int) -> codec.Row:
        state = self._owner(step.trajectory_id, f"step {step.id!r}")
        if state.status != "open":
            raise Conflict(f"trajectory {step.trajectory_id!r} has ended ({state.status}); it takes no step any more")
        if (state.cursor, step.index) in self.occupied:
            raise Conflict(f"trajectory {step.trajectory_id!r} already has a step at index {step.index}")
        packed = self.packer.pack(step, trajectory=state.cursor, cursor=cursor)
        self.occupied.add((state.cursor, step.index))
        self.places[step.id] = _StepPlace(cursor, state.cursor)
        self.touched[state.cursor] = state
        state.add_step(step)
        return {"trajectory_cursor": state.cursor, **packed}

    def _admit_annotation(self, note: Annotation, cursor: int) -> codec.Row:
        place = self.places.get(note.target_id) if note.target == "step" else None
        if place is None and note.target == "step":
            raise NotFound(f"annotation {note.id!r} is about the step {note.target_id!r}, which the pool does not hold")
        about = f"annotation {note.id!r}"
        state = self.by_cursor[place.trajectory_cursor] if place else self._owner(note.target_id, about)
        if note.kind == "end" and state.status not in ("open", note.name):
            raise Conflict(f"trajectory {note.target_id!r} has ended as {state.status}; it cannot end as {note.name}")
        self.touched[state.cursor] = state
        state.add_annotation(note, cursor)
        return {"trajectory_cursor": state.cursor, "step_cursor": place.cursor if place else None}

    def _owner(self, trajectory_id: str, who: str) -> _Trajectory:
        state = self.by_id.get(trajectory_id)
        if state is None:
            raise NotFound(f"{who} names the trajectory {trajectory_id!r}, which the pool does not hold")
        return state

    def write(self) -> None:
        """Write what was admitted and bring the derived columns up to date."""
        if not self.rows:
            return
        new = [self.by_id[str(row["id"])] for row in self.rows[trajectories]]
        for row, state in zip(self.rows[trajectories], new, strict=True):
            row.update(state.derived())
        for table in _TABLES.values():
            if self.rows[table]:
                _insert[table].execute(self.connection, self.rows[table])
        grown = self.touched.keys() - {state.cursor for state in new}
        if grown:
            rows = [{"of": cursor, **self.touched[cursor].derived()} for cursor in sorted(grown)]
            _set_trajectory.execute(self.connection, rows)
        _set_cursor.execute(self.connection, [{"value": self.cursor}])
        self._mark_ready()

    def _mark_ready(self) -> None:
        """Groups that this batch completed."""
        complete = [state for state in self.touched.values() if state.complete_cursor is not None]
        within = {state.group_cursor for state in complete if state.group_cursor is not None}
        sizes = {row.cursor: row.size for row in _waiting.rows(self.connection, list(within))}
        ready = [
            {"of": group, "ready_cursor": members[-1].cursor, "ready_version": _lowest(members)}
            for group, completions in _completions(self.connection, list(sizes))
            if (members := readiness.handed_over(sizes[group], completions)) is not None
        ]
        if ready:
            _set_group.execute(self.connection, ready)


def _mentioned(drafts: Iterable[codec.Draft]) -> dict[type[Record], set[str]]:
    """Ids of all records that a batch submits or refers to."""
    ids: dict[type[Record], set[str]] = {kind: set() for kind in _TABLES}
    for draft in drafts:
        record = draft.record
        ids[type(record)].add(record.id)
        match record:
            case TrajectoryInfo(group_id=str(group_id)):
                ids[GroupInfo].add(group_id)
            case Step():
                ids[TrajectoryInfo].add(record.trajectory_id)
            case Annotation():
                ids[Step if record.target == "step" else TrajectoryInfo].add(record.target_id)
            case _:
                pass
    return ids


def _completions(
    connection: sa.Connection, group_cursors: Sequence[int]
) -> Iterator[tuple[int, list[readiness.Completion]]]:
    by_group: dict[int, list[readiness.Completion]] = defaultdict(list)
    for row in _complete.rows(connection, group_cursors):
        done = readiness.Completion(
            trajectory=row.cursor, cursor=row.complete_cursor, policy_version_min=row.policy_version_min
        )
        by_group[row.group_cursor].append(done)
    yield from by_group.items()


def _lowest(members: Iterable[readiness.Completion]) -> int | None:
    return min((done.policy_version_min for done in members if done.policy_version_min is not None), default=None)
