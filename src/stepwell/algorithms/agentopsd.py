"""AgentOPSD (github.com/ZethWang/AgentOPSD): GRPO, re-weighed turn by turn, by how a belief in success moved.

What a teacher who knows more finds likelier than the policy is evidence for success, summed over each turn. A belief
starts at the group's rate of success and is revised turn by turn; turns that moved it most in the direction of the
outcome count more than the others of their trajectory.
"""

from functools import partial
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepwell.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    Doubles,
    Inputs,
    Objective,
    Teacher,
    Tokenize,
    broadcast,
)
from stepwell.algorithms.gae import discounted_returns
from stepwell.algorithms.grpo import group_advantages
from stepwell.algorithms.hindsight import HindsightForAll, Narrator, finite_rewards
from stepwell.algorithms.shaping import mixed, step_gap
from stepwell.types import Credit, Group, Ids, Trajectory

_CERTAIN: Final = 1e-4
"""A prior belief is kept this far from 0 and 1."""


def belief_revisions(evidence: npt.ArrayLike, *, prior: float, decay: float) -> Doubles:
    """ΔB_k = σ(ℓ_k) − σ(ℓ_{k−1}) with ℓ_k = logit(prior) + c_k, c_k = decay·c_{k−1} + e_k, c_0 = 0.

    Args:
        evidence: [K], nats, of each turn.
        prior: probability of success before the first turn.
        decay: in 0..1; 1 forgets nothing.

    Returns:
        float64 [K]; without decay of belief they add up to the last belief minus the prior.
    """
    p = min(max(prior, _CERTAIN), 1 - _CERTAIN)
    gathered = discounted_returns(np.asarray(evidence, np.float64)[::-1], decay)[::-1]
    odds = np.log(p / (1 - p)) + np.append(0.0, gathered)
    belief = 1 / (1 + np.exp(-odds.clip(-500, 500)))
    revisions: Doubles = np.diff(belief)
    return revisions


def turn_weights(revisions: Doubles, advantage: float, band: float, eps: float = 1e-6) -> Doubles:
    """1 + band·z(sign(A)·ΔB) within 1 ± band, float64 [K]; z over the turns of the trajectory, population deviation."""
    q = np.sign(advantage) * revisions
    if len(q) < 2:
        return np.ones(len(q))
    weights: Doubles = 1 + band * (q - q.mean()) / (q.std() + eps)
    return weights.clip(1 - band, 1 + band)


class AgentOPSD(AlgorithmConfig):
    """GRPO, re-weighed turn by turn by the revisions of a belief in success."""

    mixing: float = Field(default=0.5, ge=0, le=1)
    """How much of the weight is mixed in; 0 is GRPO, without a teacher."""
    band: float = Field(default=0.2, ge=0, lt=1)
    """Weights are kept within 1 ± band; less than 1, so that no advantage changes its sign."""
    decay: float = Field(default=0.95, ge=0, le=1)
    """What is left of earlier evidence from one turn to the next."""
    hindsight: HindsightForAll = HindsightForAll()
    """What the teacher, the current policy, is told. (The authors' is told skills that were written for each task.)"""
    scale: Literal["std", "none"] = "std"
    """GRPO's: divide by the group's standard deviation, or not."""
    objective: Objective = Objective()
    """Token ratio, clip 0.2, every step counts equally."""

    def build(self) -> Algorithm:
        """The algorithm with these settings. Raises ConfigError as `Hindsight.build` does."""
        narrator = self.hindsight.build(self.objective)
        return Algorithm(
            name="agentopsd",
            assign=partial(self._assign, narrator),
            needs_logprobs=self.mixing > 0,
            teacher=Teacher(prompts=partial(self._prompts, narrator), paired=True) if self.mixing else None,
            objective=self.objective,
        )

    def _advantages(self, group: Group) -> Doubles:
        return group_advantages(finite_rewards(group), scale=self.scale)

    def _prompts(self, narrator: Narrator, group: Group, tokenize: Tokenize) -> dict[str, Ids]:
        return narrator.prompts(group, tokenize, unhinted=False) if self._advantages(group).any() else {}

    def _assign(self, narrator: Narrator, group: Group, inputs: Inputs) -> list[Credit]:
        prior = float(np.mean([reward > self.hindsight.correct_above for reward in finite_rewards(group)]))
        return [
            credit
            for trajectory, advantage, hint in zip(
                group.trajectories, self._advantages(group), narrator.hints(group), strict=True
            )
            for credit in self._credit(trajectory, float(advantage), prior, inputs if hint else None)
        ]

    def _credit(self, trajectory: Trajectory, advantage: float, prior: float, inputs: Inputs | None) -> list[Credit]:
        steps = [step for step in trajectory.steps if not step.side]
        advantages = np.full(len(steps), advantage)
        if inputs is not None and advantage and self.mixing:
            evidence = [step_gap(step, inputs).sum() if step.trainable else 0.0 for step in steps]
            revisions = belief_revisions(evidence, prior=prior, decay=self.decay)
            advantages = mixed(advantage, turn_weights(revisions, advantage, self.band), self.mixing)
        return [
            Credit(step_id=step.id, advantages=broadcast(own, len(step.response_ids)))
            for step, own in zip(steps, advantages, strict=True)
        ]
