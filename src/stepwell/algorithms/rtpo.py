"""RTPO (arXiv 2608.18682): the same step taken again, several times, from the very same state: which try is best?

A group is a set of siblings, forked from one trajectory at its step k (`GroupInfo.origin_index`). Each takes step k
anew and plays on to the end with the policy that is current. Only the tokens of step k are trained; what came before
is shared, and what comes after only shows what step k was worth. Turns are trained from the last to the first: which
groups are collected says `Algorithm.siblings`. Of a group without an origin k would be the first step
(`plain_groups`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from stepwell.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    Doubles,
    Inputs,
    Objective,
    Siblings,
    broadcast,
    known_reward,
)
from stepwell.algorithms.decisions import critic_values, untrained, value_after
from stepwell.algorithms.grpo import group_advantages
from stepwell.algorithms.rloo import leave_one_out
from stepwell.algorithms.shaping import logprob_difference
from stepwell.errors import InvalidRecord
from stepwell.types import NO_FLOATS, Credit, Group, Step, Trajectory

Baseline = Literal["mean", "leave_one_out", "critic"]


def sibling_advantages(
    returns: npt.ArrayLike,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    *,
    scale: Literal["none", "std"] = "none",
) -> Doubles:
    """R_j − V for n siblings, float64 [n].

    `mean`: V is their mean, each sibling's own return included, as published. On average over siblings that is
    (n − 1)/n of the advantage; with n = G − 1 in the paper's count, (G − 2)/(G − 1). `leave_one_out`: the mean of the
    others, which is unbiased. A single sibling is compared with nothing: 0.

    Raises:
        InvalidRecord: a return is NaN or infinite.
    """
    compared = group_advantages(returns, scale=scale)
    if baseline == "mean":
        return compared
    return leave_one_out(returns) if scale == "none" else compared * (len(compared) / max(len(compared) - 1, 1))


def continuation_weight(new: npt.ArrayLike, sampled: npt.ArrayLike, bounds: tuple[float, float]) -> float:
    """ω = Π π_θ/π_sampled over the tokens of a continuation, within `bounds`; 1 for none, or if θ sampled them.

    Args:
        new: [N], log-probabilities under the current policy, nats.
        sampled: [N], as sampled.
        bounds: lowest and highest.

    Raises:
        InvalidRecord: lengths differ, or a number is NaN or infinite.
    """
    low, high = bounds
    total = np.clip(logprob_difference(new, sampled).sum(), -700, 700)  # further out, exp is 0 or infinite in float64
    return float(np.exp(total).clip(low, high))


def generated_turns(turns: int, siblings: int) -> int:
    """Turns sampled for one origin of K turns with n siblings at each, that all play to the end: K + n·K(K + 1)/2."""
    return turns + siblings * turns * (turns + 1) // 2


def pool_equal_states(groups: Sequence[Group]) -> list[Group]:
    """Sets of siblings of one task that took the same step after byte-identical prompts, made one set each.

    More siblings per set are rarely all alike, so fewer have no advantage. To the policy states with the same prompt
    are the same. The first of them names the set. Order is kept; groups whose siblings do not agree stay as they are.
    """
    sets: dict[tuple[str, int, bytes], list[Group]] = {}
    for number, group in enumerate(groups):
        prompts = {step.prompt_ids.tobytes() for step in _retaken(group) if step is not None}
        state = (group.info.task_id, _turn(group), prompts.pop()) if len(prompts) == 1 else ("", number, b"")
        sets.setdefault(state, []).append(group)
    return [_merged(same) for same in sets.values()]


def _merged(groups: Sequence[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    siblings = tuple(trajectory for group in groups for trajectory in group.trajectories)
    return replace(groups[0], info=replace(groups[0].info, size=len(siblings)), trajectories=siblings)


class RTPO(AlgorithmConfig):
    """Reverse-turn policy optimisation: credit within a set of siblings."""

    baseline: Baseline = "mean"
    """What a sibling's return is compared with: the mean of all, its own included, as published, which shortens
    advantages to (n - 1)/n for n siblings; the mean of the others; or a critic's value of the state."""
    scale: Literal["none", "std"] = "none"
    """Divide by the siblings' standard deviation, or, as published, do not."""
    zero_advantage: Literal["keep", "skip"] = "keep"
    """Siblings that all did equally well teach nothing. They may count in the mean that the loss is, as published, or
    be left out of it, so that an update with many of them is no smaller."""
    continuation: Literal["regenerated", "reused"] = "regenerated"
    """After the step that is trained the current policy played, or an older one: then what came after is weighed by
    how much likelier the current policy makes it."""
    pool_equal_states: bool = False
    """Compare siblings of all sets that took the same step of the same task after byte-identical prompts."""
    weight_bounds: tuple[float, float] = (0.1, 10.0)
    """Within which that weight is kept."""
    plain_groups: Literal["refuse", "first_step"] = "refuse"
    """Trajectories are forked, and groups that were not, and have longer ones than a step, are an error; or groups are
    collected as for other algorithms, and their first steps are trained, as if taken anew, and no other."""
    order: Literal["reverse", "forward"] = "reverse"
    """Which turn of the trunks is taken anew and trained first: the last, as published, or the first."""
    trunks: int = Field(default=1, ge=1)
    """Trajectories of each task whose turns are taken anew, by `rollout.group_size` siblings each."""
    skip_alike: bool = True
    """Siblings that all take the same step are dropped at once. What they earn differs by luck alone, and their
    advantages, which sum to 0, push the same tokens: playing them on would cost turns and teach nothing. As published,
    they are played on, and count in the mean that the loss is."""
    trunks_ahead: bool = True
    """New trunks are played while the siblings of the last turn of those before are: a round has no phase for them
    alone. They are then sampled one update earlier than as published; only the states that they reached are used."""
    objective: Objective = Objective()
    """Token ratio, clip 0.2, every step counts equally."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RTPO":
        low, high = self.weight_bounds
        if not 0 <= low <= 1 <= high < float("inf"):
            raise ValueError("weight_bounds must be finite and have 1 between them")
        if self.baseline == "critic" and (self.scale == "std" or self.zero_advantage == "skip"):
            raise ValueError("scale: std and zero_advantage: skip compare siblings, which baseline: critic does not")
        return self

    def build(self) -> Algorithm:
        """The algorithm with these settings."""
        return Algorithm(
            name="rtpo",
            assign=self._assign,
            needs_values="step" if self.baseline == "critic" else "none",
            needs_logprobs=self.continuation == "reused",
            regroup=pool_equal_states if self.pool_equal_states else None,
            siblings=self._siblings() if self.plain_groups == "refuse" else None,
            diagnose=self._diagnose,
            objective=self.objective,
        )

    def _siblings(self) -> Siblings:
        cancels = self.baseline != "critic"  # with one the advantages of equal steps do not
        return Siblings(
            order=self.order,
            trunks=self.trunks,
            skip_alike=self.skip_alike and cancels,
            ahead=self.trunks_ahead,
        )

    def _diagnose(self, group: Group, inputs: Inputs) -> dict[str, float]:
        """How many siblings there are, how many turns they took, and whether they teach nothing."""
        advantages, steps = self._advantages(group, inputs), _retaken(group)
        alone = self.baseline != "critic" and len(steps) == 1
        return {
            "siblings": float(len(steps)),
            "generated_turns": float(_generated(group)),
            "single_sibling_rate": float(alone),
            "alike_siblings_rate": float(not advantages.any()),
        }

    def _assign(self, group: Group, inputs: Inputs) -> list[Credit]:
        """A single sibling, compared with nothing, is left out, unless there is a critic."""
        advantages, retaken = self._advantages(group, inputs), _retaken(group)
        alone = self.baseline != "critic" and len(retaken) == 1
        useless = alone or (self.zero_advantage == "skip" and not advantages.any())
        return [
            self._credit(step, float(advantage), inputs) if step is own and not useless else untrained(step)
            for trajectory, own, advantage in zip(group.trajectories, retaken, advantages, strict=True)
            for step in trajectory.steps
            if not step.side
        ]

    def _credit(self, step: Step, advantage: float, inputs: Inputs) -> Credit:
        targets = NO_FLOATS
        if self.baseline == "critic":
            targets = (critic_values(inputs, step, 1) + advantage).astype(np.float32)
        return Credit(step_id=step.id, advantages=broadcast(advantage, len(step.response_ids)), value_targets=targets)

    def _advantages(self, group: Group, inputs: Inputs) -> Doubles:
        if self.plain_groups == "refuse":
            _require_origin(group)
        retaken = _retaken(group)
        _require_one_state(group, retaken)
        pairs = zip(group.trajectories, retaken, strict=True)
        returns = np.array([self._return(t, own, _turn(group), inputs) for t, own in pairs], np.float64)
        if self.baseline != "critic":
            return sibling_advantages(returns, self.baseline, scale=self.scale)
        values = np.array([0.0 if own is None else critic_values(inputs, own, 1)[0] for own in retaken], np.float64)
        if not (np.isfinite(returns).all() and np.isfinite(values).all()):
            raise InvalidRecord(f"group {group.info.id} holds a NaN or infinite return or value")
        return np.where([own is None for own in retaken], 0.0, returns - values)

    def _return(self, trajectory: Trajectory, own: Step | None, turn: int, inputs: Inputs) -> float:
        """What was earned from the step that was taken anew on, undiscounted."""
        start = turn if own is None else own.index
        earned = list(zip(trajectory.steps, trajectory.step_rewards, strict=True))
        total = known_reward(trajectory) - sum(reward for step, reward in earned if step.index < start)
        if self.baseline == "critic":
            total += value_after(trajectory, inputs, bootstrap=True)
        if self.continuation == "regenerated":
            return total
        here = sum(reward for step, reward in earned if step.index == start)
        later = [step for step in trajectory.steps if step.index > start and step.trainable]
        return here + self._weight(later, inputs) * (total - here)

    def _weight(self, later: Sequence[Step], inputs: Inputs) -> float:
        missing = [step.id for step in later if step.id not in inputs.logprobs]
        if missing:
            raise InvalidRecord(f"the current policy did not score step {missing[0]}, which its weight needs")
        new = np.concatenate([np.empty(0), *(inputs.logprobs[step.id] for step in later)])
        sampled = np.concatenate([np.empty(0), *(step.logprobs for step in later)])
        return continuation_weight(new, sampled, self.weight_bounds)


def _turn(group: Group) -> int:
    return -1 if group.info.origin_index is None else group.info.origin_index


def _retaken(group: Group) -> list[Step | None]:
    """Of each sibling the step that it took anew; None if it did not get that far."""
    turn = _turn(group)
    return [
        next((step for step in t.steps if not step.side and (turn < 0 or step.index == turn)), None)
        for t in group.trajectories
    ]


def _require_one_state(group: Group, retaken: Sequence[Step | None]) -> None:
    """Siblings of an origin differ in what they did, never in what they saw."""
    prompts = {step.prompt_ids.tobytes() for step in retaken if step is not None}
    if group.info.origin_id and len(prompts) > 1:
        raise InvalidRecord(f"the siblings of group {group.info.id} did not see the same prompt at step {_turn(group)}")


def _require_origin(group: Group) -> None:
    """Of longer trajectories that were not forked only the first steps would be trained: hardly what somebody wants."""
    if group.info.origin_index is not None:
        return
    if any(sum(not step.side for step in trajectory.steps) > 1 for trajectory in group.trajectories):
        raise InvalidRecord(
            f"group {group.info.id} was not forked from a trajectory, so only the first of its steps could be trained; "
            "give it origin_id and origin_index, set plain_groups: first_step, or choose grpo"
        )


def _generated(group: Group) -> int:
    """Turns that the siblings played themselves: the step that they took anew, and those after it."""
    return sum(not step.side and step.index >= _turn(group) for t in group.trajectories for step in t.steps)
