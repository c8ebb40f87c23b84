"""What an algorithm is: data plus a pure function. The trainer executes it and knows none by name.

To add one, write one file with a subclass of `AlgorithmConfig` whose `build` returns an `Algorithm`, and either add it
to the table in `stepwell.algorithms` or name it by its file (`--algorithm my_estimator.py:MyEstimator`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from stepwell.algorithms.objective import Objective as Objective
from stepwell.config import Config
from stepwell.errors import InvalidRecord
from stepwell.types import Credit, Floats, Group, Ids, Mask, Step, Trajectory

Scope = Literal["none", "step", "token"]
Doubles = npt.NDArray[np.float64]
"""What arithmetic of credit is done in; a step's advantages are float32 once they are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What an algorithm asked for, for the steps of one group."""

    values: Mapping[str, Floats] = field(default_factory=dict)
    """By step id: the critic's values, float32 [V]: V = 1 at the last prompt token, or V = R one before each token.
    Steps beside the agent's work are among them, for the state after a trajectory's last action (`final_step`)."""
    logprobs: Mapping[str, Floats] = field(default_factory=dict)
    """By step id: log-probabilities of the response as the current policy computes them, float32 [R], nats."""
    teacher_logprobs: Mapping[str, Floats] = field(default_factory=dict)
    """By step id: those of the teacher, under the context that `Teacher.prompts` gave; float32 [R], nats."""
    actions: Mapping[str, Mask] = field(default_factory=dict)
    """By step id: which response tokens are its tool calls, or what it says if it calls nothing; bool [R]."""
    updates: int = 0
    """How many updates have been made so far, for schedules."""


Tokenize = Callable[[str], Ids]
"""Token ids of a text, int32 [P], without special tokens of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """What the trainer knows of the model's tokenizer and of its way to act."""

    tokenize: Tokenize
    """For the words of hints."""
    action_mask: Callable[[Step], Mask]
    """See `Inputs.actions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A policy that knows more: it scores the same response after another prompt."""

    prompts: Callable[[Group, Tokenize], Mapping[str, Ids]]
    """By step id: the prompt, int32 [P], after which the teacher scores that step's response. Steps that it leaves out
    have no teacher."""
    refresh_every: int = 0
    """The teacher is a copy of the policy, made anew after each so many updates, counted from 0; the first copy is of
    the policy before its first update. 0: the current policy itself."""
    until: int | None = None
    """After so many updates nobody listens to it any more, so it need not score; None: always."""
    paired: bool = False
    """The current policy's log-probabilities (`Algorithm.needs_logprobs`) are only compared with the teacher's: so they
    are wanted of the steps that it scores, and no longer than it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """An update in several optimiser steps, one for all steps of the same turn, one turn after the other.

    What a turn's optimiser step did to its own probabilities is carried to the turns after it: their advantages are
    multiplied by the ratio new/old of the turns before (SeeUPO, arXiv 2602.06554).
    """

    order: Literal["reverse", "forward", "random"] = "reverse"
    """Which turn comes first: the last, the first, or by a seeded shuffle of each update."""
    ratio: Literal["geo", "exact"] = "exact"
    """The ratio of a turn's response that is carried: geometric mean over its tokens, or their product."""
    bounds: tuple[float, float] | None = None
    """Each ratio, and the product of those carried so far, are kept within; None: not bounded."""
    recompute_old: bool = False
    """The denominator of a turn's own ratio: log-probabilities before the sweep, or before that turn's step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """An update trains one turn of trajectories, the trunks, which is taken anew by a group of siblings each.

    All trunks' turns have an update each, one after the other, and the policy that is current then takes them anew and
    plays on to the end. Then there are new trunks.
    """

    order: Literal["reverse", "forward"] = "reverse"
    """Which turn comes first: the last, or the first."""
    trunks: int = 1
    """Trajectories of each task that siblings are forked from."""
    skip_alike: bool = False
    """Siblings that all take the same step are not played on: their advantages cancel, whatever happens next."""
    ahead: bool = False
    """New trunks are played beside the siblings of the last turn that is left, so by the policy of that turn, and not
    by the one after its update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A credit assignment with the objective that it is trained with."""

    name: str
    assign: Callable[[Group, Inputs], list[Credit]]
    """Credit for every trainable step of a group. Pure; raises InvalidRecord on unusable input."""
    needs_values: Scope = "none"
    """Where it reads a critic: nowhere, at each step's last prompt token, or before each response token."""
    needs_logprobs: bool = False
    """Whether it reads the current policy's own log-probabilities of the responses."""
    needs_actions: bool = False
    """Whether it reads which tokens of a response are its action."""
    teacher: Teacher | None = None
    """Whose log-probabilities it reads."""
    diagnose: Callable[[Group, Inputs], Mapping[str, float]] | None = None
    """What is worth knowing of a group, by name: an update's metrics have the mean over the groups that tell it."""
    regroup: Callable[[Sequence[Group]], Sequence[Group]] | None = None
    """What an update's groups become before anything else; None: they stay."""
    siblings: Siblings | None = None
    """What a group is collected as; None: trajectories of one task from its beginning."""
    sweep: Sweep | None = None
    """How an update is cut into optimiser steps; None: as the trainer is set."""
    whiten: Scope = "none"
    """Advantages are shifted and scaled to mean 0 and deviation 1 over all steps, or all tokens, of an update."""
    advantage_bound: float | None = None
    """Advantages are kept within ±this once they are whitened; None: not bounded."""
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


def final_step(trajectory: Trajectory) -> Step | None:
    """The step whose prompt is the state after the last action of a truncated trajectory; None if nobody recorded it.

    It is a call beside the agent's work, made after the last of its steps, whose answer nobody acted on.
    """
    if trajectory.status != "truncated" or not trajectory.steps:
        return None
    last = trajectory.steps[-1]
    return last if last.side == "state" else None


def broadcast(advantage: float, tokens: int) -> Floats:
    """One advantage for all tokens of a step: float32 [tokens]."""
    return np.full(tokens, advantage, np.float32)
