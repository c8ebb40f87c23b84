"""What a teacher is told in hindsight: how it ended, how a peer did it, a reference answer.

The hint stands right before the response, after all that the policy saw. Its words are tokenised; a peer's trajectory
is told in the very ids that were recorded, so that nothing in it is tokenised twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
from pydantic import Field, model_validator

from stepwell.algorithms.base import Objective, Tokenize, known_reward
from stepwell.config import Config
from stepwell.errors import ConfigError, InvalidRecord
from stepwell.types import Group, Ids, Step, Trajectory

_OPEN: Final = "\n<hindsight>\n"
_CLOSE: Final = "</hindsight>\n\n"


class Hindsight(Config):
    """What the teacher is told."""

    told: Literal["nothing", "peer", "golden"] = "peer"
    """`peer`: how the first correct trajectory of the group went, observations and all, but never the one in question.
    `golden`: the reference answer to the task."""
    outcome: bool = False
    """Tell also whether the trajectory turned out correct. With `told: nothing` that is all."""
    peer_for: Literal["failed", "all"] = "failed"
    """Who is told of a peer: trajectories that were not correct (StepOPSD), or all that have one (SDPO)."""
    peer_tokens: int = Field(default=4096, ge=1)
    """Of a peer's longer trajectory only so many last tokens are told."""
    correct_above: float = 0.5
    """A trajectory whose reward is more than this is correct."""
    golden: Path | None = None
    """For `told: golden`: JSON lines like `{"task_id": "7", "answer": "Paris"}`."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Hindsight":
        if (self.told == "golden") != (self.golden is not None):
            raise ValueError("`golden` is the file of reference answers for `told: golden`: give both, or neither")
        return self

    def build(self, objective: Objective) -> "Narrator":
        """Who tells it.

        Raises:
            ConfigError: the reference answers cannot be read, or the objective takes the divergence from the rewards,
                by which it is known who was correct.
        """
        if objective.kl_in == "reward":
            raise ConfigError(
                "hindsight knows by the rewards who was correct, so objective.kl_in: reward would change what a "
                "teacher is told; use kl_in: loss"
            )
        return Narrator(self)


class HindsightForAll(Hindsight):
    """Hindsight of which correct trajectories get their share."""

    peer_for: Literal["failed", "all"] = "all"
    """See `Hindsight.peer_for`."""


@dataclass(frozen=True, slots=True, eq=False)
class Hint:
    """What the teacher is told of one trajectory."""

    parts: tuple[str | Ids, ...] = ()
    """Texts, and int32 [·] ids of what was recorded, in order; empty: nothing."""
    truncated: bool = False
    """Whether a peer's trajectory was too long to be told whole."""

    def __bool__(self) -> bool:
        return bool(self.parts)

    def ids(self, tokenize: Tokenize) -> Ids:
        """All of it as token ids, int32 [·]."""
        found = [tokenize(part) if isinstance(part, str) else part for part in self.parts]
        return np.concatenate([np.empty(0, np.int32), *found]).astype(np.int32)


NO_HINT: Final = Hint()


class Narrator:
    """Tells hints about the trajectories of a group. Holds the reference answers, and nothing that changes."""

    def __init__(self, config: Hindsight) -> None:
        """Read the reference answers, if any are to be told."""
        self._config = config
        self._golden = _read_golden(config.golden) if config.golden else {}

    def hints(self, group: Group) -> list[Hint]:
        """One per trajectory. Raises InvalidRecord if a reward is missing, NaN or infinite."""
        correct = [reward > self._config.correct_above for reward in finite_rewards(group)]
        models = [t for t, good in zip(group.trajectories, correct, strict=True) if good and _decisions(t)]
        models.sort(key=lambda t: (t.info.created_at, t.info.id))  # as they were begun, whatever the order at hand
        return [
            self._hint(trajectory, good, models, group.info.task_id)
            for trajectory, good in zip(group.trajectories, correct, strict=True)
        ]

    def prompts(self, group: Group, tokenize: Tokenize, *, unhinted: bool) -> dict[str, Ids]:
        """By step id: what the teacher reads before each trainable response, int32 [P].

        Trajectories that there is nothing to tell of are left out, or, if `unhinted`, read as the policy saw them.
        """
        found: dict[str, Ids] = {}
        for trajectory, hint in zip(group.trajectories, self.hints(group), strict=True):
            if hint or unhinted:
                ids = hint.ids(tokenize)
                found |= {step.id: _told(step, ids) for step in trajectory.steps if step.trainable}
        return found

    def _hint(self, trajectory: Trajectory, correct: bool, models: Sequence[Trajectory], task_id: str) -> Hint:
        parts: list[str | Ids] = []
        truncated = False
        if self._config.outcome:
            parts.append(f"final_correctness: {'correct' if correct else 'incorrect'}\n")
        if self._config.told == "golden" and task_id in self._golden:
            parts.append(f"golden_rollout:\n<golden_rollout>\n{self._golden[task_id]}\n</golden_rollout>\n")
        if self._config.told == "peer" and (not correct or self._config.peer_for == "all"):
            peer = next((t for t in models if t is not trajectory), None)
            if peer is not None:
                whole, budget = transcript(peer), self._config.peer_tokens
                truncated = len(whole) > budget
                parts.append("peer_correct_trajectory:\n<peer_correct_trajectory>\n")
                parts += [whole[-budget:], "\n</peer_correct_trajectory>\n"]
        return Hint((_OPEN, *parts, _CLOSE), truncated) if parts else NO_HINT


def finite_rewards(group: Group) -> list[float]:
    """The reward of each trajectory. Raises InvalidRecord if one is missing, NaN or infinite."""
    rewards = [known_reward(trajectory) for trajectory in group.trajectories]
    if not np.isfinite(rewards).all():
        raise InvalidRecord(f"group {group.info.id} holds a NaN or infinite reward")
    return rewards


def transcript(trajectory: Trajectory) -> Ids:
    """All that a trajectory said and saw after its first prompt, in the ids that were recorded; int32 [·].

    Of each later prompt it is what goes beyond the step before: the observation, where prompts are appended to; all
    that was written anew, where they are rebuilt.
    """
    steps = _decisions(trajectory)
    parts = [step.response_ids for step in steps[:1]]
    for before, step in pairwise(steps):
        seen = np.concatenate([before.prompt_ids, before.response_ids])
        parts += [step.prompt_ids[_shared(seen, step.prompt_ids) :], step.response_ids]
    return np.concatenate([np.empty(0, np.int32), *parts]).astype(np.int32)


def _decisions(trajectory: Trajectory) -> list[Step]:
    return [step for step in trajectory.steps if not step.side]


def _shared(left: Ids, right: Ids) -> int:
    """How many leading ids they have in common."""
    length = min(len(left), len(right))
    differs = np.flatnonzero(left[:length] != right[:length])
    return int(differs[0]) if len(differs) else length


def _told(step: Step, hint: Ids) -> Ids:
    """The hint after the prompt, but before the beginning of the answer that the gateway wrote into it."""
    end = len(step.prompt_ids) - step.prefill
    return np.concatenate([step.prompt_ids[:end], hint, step.prompt_ids[end:]]).astype(np.int32)


class _Line(msgspec.Struct):
    """What is read of a line; other keys may stand beside."""

    task_id: str
    answer: str


def _read_golden(path: Path) -> dict[str, str]:
    try:
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
        decoded = [msgspec.json.decode(line, type=_Line) for line in lines]
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read reference answers from {path}: {error}") from error
    return {line.task_id: line.answer for line in decoded}
