"""What is known of a trajectory and when a group is ready: pure folds of steps and annotations."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from stepwell.types import Annotation, Status, Step, Trajectory, TrajectoryInfo, Verdict

STANDING: Final = ("reward", "verdict", "tag")
"""Kinds of annotations of which the newest holds."""


class Completion(NamedTuple):
    """One trajectory of a group that is complete: ended, not failed, rewarded."""

    trajectory: int
    """Cursor of the trajectory."""
    cursor: int
    """Where in the log it became complete."""
    policy_version_min: int | None
    """Lowest version of its steps; None without steps."""


@dataclass(slots=True)
class Facts:
    """What holds of a trajectory: of each reward part, verdict and tag the newest, by what it is about.

    Sums are correctly rounded, so the order in which different facts arrived changes no bit.
    """

    rewards: dict[tuple[Hashable, str], float] = field(default_factory=dict)
    """By (target, name of the part)."""
    _verdicts: dict[Hashable, str] = field(default_factory=dict)
    _tags: dict[tuple[Hashable, str], bool] = field(default_factory=dict)

    def add(self, target: Hashable, kind: str, name: str, value: float | None) -> None:
        """Add one annotation, newer than all before; `target` is the step, or what stands for the whole."""
        if kind == "reward" and value is not None:
            self.rewards[target, name] = value
        elif kind == "verdict":
            self._verdicts[target] = name
        elif kind == "tag":
            self._tags[target, name] = value != 0

    @property
    def reward(self) -> float | None:
        """Sum of the rewards that hold; None if there is none, which is not the same as 0."""
        return math.fsum(self.rewards.values()) if self.rewards else None

    @property
    def verdict(self) -> Verdict:
        """The strictest of the verdicts that hold."""
        given = self._verdicts.values()
        return "reject" if "reject" in given else "accept" if "accept" in given else "clear"

    @property
    def has_tags(self) -> bool:
        """Whether any tag was ever given or taken."""
        return bool(self._tags)

    @property
    def tags(self) -> tuple[str, ...]:
        """The labels that the trajectory or a step of it has, sorted."""
        return tuple(sorted({name for (_, name), present in self._tags.items() if present}))


def fold(info: TrajectoryInfo, steps: Iterable[Step], annotations: Sequence[Annotation]) -> Trajectory:
    """A trajectory out of its steps (any order) and what was said of it and them, oldest first."""
    ordered = tuple(sorted(steps, key=lambda step: step.index))
    facts = facts_of(annotations)
    return Trajectory(
        info=info,
        steps=ordered,
        step_rewards=_step_rewards(ordered, facts),
        reward=facts.reward,
        reward_parts=_parts(facts),
        status=status_of(annotations),
        why=next((note.text for note in reversed(annotations) if note.kind == "end"), ""),
        annotations=tuple(note for note in annotations if note.kind in ("feedback", "event", "note")),
        verdict=facts.verdict,
        tags=facts.tags,
    )


def facts_of(annotations: Iterable[Annotation]) -> Facts:
    """What holds after `annotations`, oldest first; the target of those about the whole is None."""
    facts = Facts()
    for note in annotations:
        facts.add(note.target_id if note.target == "step" else None, note.kind, note.name, note.value)
    return facts


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


def _step_rewards(steps: tuple[Step, ...], facts: Facts) -> tuple[float, ...]:
    """Of each step; a reward of the whole counts at the last of the agent's own, or at the last if none is its own."""
    of_step: dict[Hashable, list[float]] = defaultdict(list)
    last = next((step.id for step in reversed(steps) if not step.side), steps[-1].id if steps else None)
    for (target, _), value in facts.rewards.items():
        of_step[last if target is None else target].append(value)
    return tuple(math.fsum(of_step[step.id]) for step in steps)


def _parts(facts: Facts) -> tuple[tuple[str, float], ...]:
    by_name: dict[str, list[float]] = defaultdict(list)
    for (_, name), value in facts.rewards.items():
        by_name[name].append(value)
    return tuple((name, math.fsum(values)) for name, values in sorted(by_name.items()))
