"""What an algorithm is: data plus a pure function. The trainer executes it and knows none by name.

To add one, write one file with a subclass of `AlgorithmConfig` whose `build` returns an `Algorithm`, and either add it
to the table in `stepwell.algorithms` or name it by its file (`--algorithm my_estimator.py:MyEstimator`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field

from stepwell.config import Config
from stepwell.errors import InvalidRecord
from stepwell.types import Credit, Floats, Group, Trajectory

Scope = Literal["none", "step", "token"]


class Objective(Config):
    """The loss that an update minimises, given the advantages.

    An update is one optimiser step on what the current version sampled, so every ratio starts at 1 and clipping cannot
    bind: ratio and clip ranges tell on data of an older version only.
    """

    ratio: Literal["token", "geo"] = "token"
    """Probability ratio new/old: of each token, or one per step, the geometric mean over its tokens (StepPO v4)."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: float = Field(default=0.2, ge=0)
    """See `clip_low`; at least 0."""
    aggregation: Literal["per_step", "per_trajectory", "per_token"] = "per_step"
    """What counts equally in the mean: steps (tokens within a step share its weight), trajectories, or tokens."""
    value_coefficient: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the critic's loss; the critic has parameters of its own, so this scales its learning rate only."""
    value_clip: float = Field(default=0.5, ge=0)
    """A value may move by at most this much per update before its loss goes flat; 0 switches clipping off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What an algorithm asked for in `needs_values`, for the steps of one group."""

    values: Mapping[str, Floats] = field(default_factory=dict)
    """By step id: the critic's values, float32 [V]: V = 1 at the last prompt token, or V = R one before each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A credit assignment with the objective that it is trained with."""

    name: str
    assign: Callable[[Group, Inputs], list[Credit]]
    """Credit for every trainable step of a group. Pure; raises InvalidRecord on unusable input."""
    needs_values: Scope = "none"
    """Where it reads a critic: nowhere, at each step's last prompt token, or before each response token."""
    whiten: Scope = "none"
    """Advantages are shifted and scaled to mean 0 and deviation 1 over all steps, or all tokens, of an update."""
    objective: Objective


class AlgorithmConfig(Config):
    """Settings of one algorithm."""

    def build(self) -> Algorithm:
        """The algorithm with these settings."""
        raise NotImplementedError(f"{type(self).__name__} needs a build()")


def known_reward(trajectory: Trajectory) -> float:
    """The trajectory's reward. Raises InvalidRecord if there is none: credit must not take that for 0."""
    if trajectory.reward is None:
        raise InvalidRecord(f"trajectory {trajectory.info.id} has no reward: a missing reward is not 0")
    return trajectory.reward


def broadcast(advantage: float, tokens: int) -> Floats:
    """One advantage for all tokens of a step: float32 [tokens]."""
    return np.full(tokens, advantage, np.float32)
