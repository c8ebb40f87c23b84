"""Where a trajectory stands among others: how its steps go on from each other, its group, forks and origin."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args

from stepwell.curation.selection import Selection
from stepwell.pool.base import GroupSummary, Pool, TrajectorySummary
from stepwell.pool.outline import StepOutline
from stepwell.types import GroupInfo, TrajectoryInfo, Verdict

MOST: Final = 100
"""Members of a group, and sets of siblings, that are listed."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Steps of which each goes on from the one before."""

    first: int
    """Index of its first step."""
    last: int
    steps: int
    parent: int | None
    """Index of the step that it parts from; None: it has none."""
    why: str
    """Why it does not go on: `Step.fork`, or `side` for calls beside the agent's work."""
    depth: int
    """How many branches lie between it and the beginning."""


@dataclass(frozen=True, slots=True)
class Family:
    """A trajectory's relatives."""

    group: GroupInfo | None
    members: tuple[TrajectorySummary, ...]
    """Of its group, itself included, in the order in which they were opened; at most `MOST`."""
    forked: tuple[GroupSummary, ...]
    """Sets of siblings that were forked from it, by the step that they take anew; at most `MOST`."""


def read_family(pool: Pool, info: TrajectoryInfo) -> Family:
    """The relatives of a trajectory. Raises NotFound and PoolError."""
    forked = [found for _, found in pool.groups(origin=info.id, limit=MOST)]
    forked.sort(key=lambda found: (found.info.origin_index or 0, found.info.created_at))
    if info.group_id is None:
        return Family(None, (), tuple(forked))
    of_group = Selection(group_ids=(info.group_id,), verdicts=get_args(Verdict))
    members = [summary for _, summary in pool.trajectories(of_group, limit=MOST)]
    return Family(pool.group_info(info.group_id), tuple(reversed(members)), tuple(forked))


def branches(steps: Sequence[StepOutline]) -> list[Branch]:
    """The steps of a trajectory, which are in the order of their indexes, as a tree; branches as they begin."""
    found: list[Branch] = []
    seen: dict[str, tuple[StepOutline, int]] = {}  # by id: the step, and the place of its branch
    last = ""  # of the agent's own work, which a step goes on from if nothing else is known
    for step in steps:
        untold = not (step.parent_id or step.fork)
        parent, place = seen.get(last if untold else step.parent_id, (None, -1))
        if parent and not (step.fork or step.side) and found[place].last == parent.index:
            found[place] = replace(found[place], last=step.index, steps=found[place].steps + 1)
        else:
            depth = found[place].depth + 1 if parent else 0
            why = "side" if step.side else step.fork
            found.append(Branch(step.index, step.index, 1, parent.index if parent else None, why, depth))
            place = len(found) - 1
        seen[step.id] = step, place
        last = last if step.side else step.id
    return found
