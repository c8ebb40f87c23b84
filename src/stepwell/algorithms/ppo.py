"""Token PPO (Schulman et al. 2017, arXiv 1707.06347): every sampled token is a decision, with a value before each.

The tokens of a trajectory's steps form one sequence: observation tokens are skipped without discounting, so the state
after a step's last token is the state before the next step's first.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Doubles, Inputs, Objective, Scope
from stepwell.algorithms.decisions import critic_values, decisions, value_after
from stepwell.algorithms.gae import gae
from stepwell.algorithms.objective import Aggregation
from stepwell.types import Credit, Floats, Group, Step, Trajectory


def rewards_of_tokens(step_rewards: Sequence[float] | Doubles, lengths: Sequence[int]) -> Doubles:
    """Each step's reward at its last token, on the sequence of all tokens of a trajectory.

    A step without tokens has no decision of its own: its reward belongs to the token before it. Before the first token
    it is nobody's merit.

    Args:
        step_rewards: [N].
        lengths: [N], the tokens of each step.

    Returns:
        float64 [sum of lengths].
    """
    rewards = np.zeros(sum(lengths))
    for end, reward in zip(np.cumsum(np.asarray(lengths, np.int64)), step_rewards, strict=True):
        if end:
            rewards[end - 1] += reward
    return rewards


def split_by_step(values: Doubles, lengths: Sequence[int]) -> list[Floats]:
    """The part of each step, float32 [its length], of what a trajectory's tokens have, [sum of lengths]."""
    return np.split(values.astype(np.float32), np.cumsum(np.asarray(lengths, np.int64)))[: len(lengths)]


class PPOObjective(Objective):
    """PPO's own: a ratio per token with clip 0.2, every token counts equally."""

    aggregation: Aggregation = "per_token"
    """See `Objective.aggregation`."""


class PPO(AlgorithmConfig):
    """Proximal policy optimisation over tokens."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per token. The StepPO authors' baseline used 0.99, a horizon of about 100 tokens."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ."""
    critic: Literal["token", "step"] = "token"
    """The critic is read and supervised before each response token, or only at a step's last prompt token, where its
    value stands for all tokens of the step."""
    whiten: Scope = "token"
    """Advantages are brought to mean 0 and deviation 1 over all tokens, or steps (by their first token), of an
    update."""
    bootstrap_on_truncation: bool = True
    """A trajectory that a limit cut off goes on, in the critic's opinion, from the state that it was left in, if that
    was recorded. False: it ended there, as in the StepPO authors' code."""
    objective: PPOObjective = PPOObjective()
    """The loss."""

    def build(self) -> Algorithm:
        """The algorithm with these settings."""

        def assign(group: Group, inputs: Inputs) -> list[Credit]:
            return [credit for trajectory in group.trajectories for credit in self._credit(trajectory, inputs)]

        return Algorithm(
            name="ppo", assign=assign, needs_values=self.critic, whiten=self.whiten, objective=self.objective
        )

    def _credit(self, trajectory: Trajectory, inputs: Inputs) -> list[Credit]:
        steps, step_rewards = decisions(trajectory)
        lengths = [len(step.response_ids) for step in steps]
        values = np.concatenate([np.empty(0), *(self._values(step, inputs) for step in steps)])
        last = value_after(trajectory, inputs, bootstrap=self.bootstrap_on_truncation)
        rewards = rewards_of_tokens(step_rewards, lengths)
        advantages = gae(rewards, values, gamma=self.gamma, lam=self.lam, last_value=last)
        targets = split_by_step(advantages + values, lengths)
        supervised = None if self.critic == "token" else 1
        return [
            Credit(step_id=step.id, advantages=advantage, value_targets=target[:supervised])
            for step, advantage, target in zip(steps, split_by_step(advantages, lengths), targets, strict=True)
        ]

    def _values(self, step: Step, inputs: Inputs) -> Doubles:
        """Before each response token, float64 [R]."""
        tokens = len(step.response_ids)
        if self.critic == "token":
            return critic_values(inputs, step, tokens).astype(np.float64)
        return np.repeat(critic_values(inputs, step, 1), tokens).astype(np.float64)
