"""REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): no critic; the baseline is the mean over a whole update.

What comes after each token is summed up, and whitened over all tokens of the update. In the variant with a baseline
the mean of a trajectory's group is taken from its reward first.
"""

from typing import Literal

from pydantic import Field, model_validator

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, Scope, known_reward
from stepwell.algorithms.decisions import credit_evenly, decisions
from stepwell.algorithms.gae import discounted_returns
from stepwell.algorithms.grpo import group_advantages
from stepwell.algorithms.ppo import rewards_of_tokens, split_by_step
from stepwell.types import Credit, Group, Trajectory


class ReinforcePP(AlgorithmConfig):
    """REINFORCE++: returns, whitened over an update."""

    baseline: Literal["none", "group"] = "none"
    """`none`: a token's advantage is the return from there on. `group`: that of all tokens of a trajectory is its
    reward minus the mean of its group."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per token of the return; without effect on the variant with a baseline, so 1 there."""
    whiten: Scope = "token"
    """Advantages are brought to mean 0 and deviation 1 over all tokens, or steps, of an update."""
    objective: Objective = Objective()
    """Token ratio, clip 0.2, every step counts equally."""

    @model_validator(mode="after")
    def _fits_together(self) -> "ReinforcePP":
        if self.baseline == "group" and self.gamma != 1:
            raise ValueError("gamma discounts the return from each token on, which baseline: group does not use")
        return self

    def build(self) -> Algorithm:
        """The algorithm with these settings."""

        def assign(group: Group, inputs: Inputs) -> list[Credit]:  # noqa: ARG001
            if self.baseline == "none":
                return [credit for trajectory in group.trajectories for credit in self._credit(trajectory)]
            returns = [known_reward(trajectory) for trajectory in group.trajectories]
            return credit_evenly(group, group_advantages(returns, scale="none"))

        return Algorithm(name="reinforce_pp", assign=assign, whiten=self.whiten, objective=self.objective)

    def _credit(self, trajectory: Trajectory) -> list[Credit]:
        steps, rewards = decisions(trajectory)
        lengths = [len(step.response_ids) for step in steps]
        returns = discounted_returns(rewards_of_tokens(rewards, lengths), self.gamma)
        parts = split_by_step(returns, lengths)
        return [Credit(step_id=step.id, advantages=part) for step, part in zip(steps, parts, strict=True)]
