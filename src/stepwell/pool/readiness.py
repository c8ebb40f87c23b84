"""What is known of a trajectory and when a group is ready: pure folds of steps and annotations."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from stepwell.types import Annotation, Status, Step, Trajectory, TrajectoryInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One trajectory of a group that is complete: ended, not failed, rewarded."""

    trajectory: int
    """Cursor of the trajectory."""
    cursor: int
    """Where in the log it became complete."""
    policy_version_min: int | None
    """Lowest version of its steps; None without steps."""


def fold(info: TrajectoryInfo, steps: Iterable[Step], annotations: Sequence[Annotation]) -> Trajectory:
    """A trajectory out of its steps (any order) and what was said of it and them, oldest first.

    The newest annotation of each (target, target id, kind, name) holds. Sums are correctly rounded, so the order in
    which different facts arrived changes no bit.
    """
    ordered = tuple(sorted(steps, key=lambda step: step.index))
    rewards = standing_rewards(annotations)
    return Trajectory(
        info=info,
        steps=ordered,
        step_rewards=_step_rewards(ordered, rewards),
        reward=total(rewards),
        reward_parts=_parts(rewards),
        status=status_of(annotations),
        why=next((note.text for note in reversed(annotations) if note.kind == "end"), ""),
        annotations=tuple(note for note in annotations if note.kind in ("feedback", "event")),
    )


def standing_rewards(annotations: Iterable[Annotation]) -> list[Annotation]:
    """The rewards that hold: the newest of each (target, target id, name); `annotations` are given oldest first."""
    newest = {(note.target, note.target_id, note.name): note for note in annotations if note.kind == "reward"}
    return list(newest.values())


def total(rewards: Sequence[Annotation]) -> float | None:
    """Sum of the rewards that hold; None if there is none, which is not the same as 0."""
    return _sum(rewards) if rewards else None


def status_of(annotations: Iterable[Annotation]) -> Status:
    """`open`, or how the newest end annotation says that the trajectory ended."""
    ends = [note.name for note in annotations if note.kind == "end"]
    return cast(Status, ends[-1]) if ends else "open"


def completed_at(status: Status, end_cursor: int | None, reward_cursor: int | None) -> int | None:
    """Cursor at which a trajectory became complete: when it was both ended (not failed) and rewarded; None before."""
    if status not in ("terminated", "truncated") or end_cursor is None or reward_cursor is None:
        return None
    return max(end_cursor, reward_cursor)


def handed_over(size: int, completions: Iterable[Completion]) -> tuple[Completion, ...] | None:
    """The trajectories that a group is made of for its consumers: the first `size` to complete; None: not ready yet.

    Completions only ever come to the end of the log, so once this is known it never changes.
    """
    first = sorted(completions, key=lambda done: (done.cursor, done.trajectory))[:size]
    return tuple(first) if len(first) == size else None


def _step_rewards(steps: tuple[Step, ...], rewards: Iterable[Annotation]) -> tuple[float, ...]:
    of_step: dict[str, list[Annotation]] = defaultdict(list)
    for note in rewards:
        at_end = note.target == "trajectory" and steps
        of_step[steps[-1].id if at_end else note.target_id].append(note)
    return tuple(_sum(of_step[step.id]) for step in steps)


def _parts(rewards: Iterable[Annotation]) -> tuple[tuple[str, float], ...]:
    by_name: dict[str, list[Annotation]] = defaultdict(list)
    for note in rewards:
        by_name[note.name].append(note)
    return tuple((name, _sum(notes)) for name, notes in sorted(by_name.items()))


def _sum(rewards: Iterable[Annotation]) -> float:
    return math.fsum(note.value for note in rewards if note.value is not None)
