"""What the rules of a selection leave of units that were just claimed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepwell.curation.selection import Selection
from stepwell.pool.candidates import Candidate
from stepwell.types import Group


@dataclass(frozen=True, slots=True)
class Sifted:
    """One unit after the rules."""

    unit: Candidate
    group: Group | None
    """What is left; None: too little, so that the unit is dropped."""
    out: tuple[tuple[int, str], ...]
    """(cursor, reason) of what is dropped: the unit, or single trajectories of it."""


def sift(selection: Selection, units: Sequence[Candidate], groups: Sequence[Group]) -> list[Sifted]:
    """Apply the rules to each unit, given with its data."""
    return [_sifted(selection, unit, group) for unit, group in zip(units, groups, strict=True)]


def _sifted(selection: Selection, unit: Candidate, group: Group) -> Sifted:
    reasons = selection.sift(group.trajectories)
    left = tuple(one for one, reason in zip(group.trajectories, reasons, strict=True) if not reason)
    if len(left) == len(reasons):
        return Sifted(unit, group, ())
    if enough(group, len(left)):
        named = zip(unit.members, reasons, strict=True)
        return Sifted(unit, replace(group, trajectories=left), tuple(pair for pair in named if pair[1]))
    return Sifted(unit, None, ((unit.cursor, next(filter(None, reasons))),))


def enough(group: Group, left: int) -> bool:
    """Whether a unit is still handed over when the rules leave `left` of its trajectories."""
    return left == len(group.trajectories) or left >= (group.info.min_size or group.info.size)


def sizes(group: Group) -> tuple[int, int]:
    """Steps and tokens, prompts included, of a group."""
    steps = [step for trajectory in group.trajectories for step in trajectory.steps]
    return len(steps), sum(len(step.prompt_ids) + len(step.response_ids) for step in steps)
