"""Token PPO (Schulman et al. 2017, arXiv 1707.06347): every sampled token is a decision, with a value before each.

The tokens of a trajectory's steps form one sequence: observation tokens are skipped without discounting, so the state
after a step's last token is the state before the next step's first.
"""

import numpy as np
from pydantic import Field

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, known_reward
from stepwell.algorithms.gae import gae
from stepwell.types import Credit, Group, Trajectory


class PPO(AlgorithmConfig):
    """Proximal policy optimisation over tokens."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per token. The StepPO authors' baseline used 0.99, a horizon of about 100 tokens."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ."""
    objective: Objective = Objective(aggregation="per_token")
    """Token ratio, clip 0.2, every token counts equally."""

    def build(self) -> Algorithm:
        """The algorithm with these settings."""

        def assign(group: Group, inputs: Inputs) -> list[Credit]:
            return [credit for trajectory in group.trajectories for credit in self._credit(trajectory, inputs)]

        return Algorithm(name="ppo", assign=assign, needs_values="token", whiten="token", objective=self.objective)

    def _credit(self, trajectory: Trajectory, inputs: Inputs) -> list[Credit]:
        known_reward(trajectory)
        values = [inputs.values[step.id] for step in trajectory.steps]
        rewards = [np.zeros(len(v)) for v in values]
        carried = 0.0  # a step without tokens has no decision of its own: its reward belongs to the one before it
        for own, reward in zip(reversed(rewards), reversed(trajectory.step_rewards), strict=True):
            carried += reward
            if len(own):
                own[-1], carried = carried, 0.0
        flat = np.concatenate(values) if values else np.empty(0)
        advantages = gae(np.concatenate(rewards) if rewards else [], flat, gamma=self.gamma, lam=self.lam)
        cuts = np.cumsum([len(v) for v in values])[:-1]
        targets = np.split((advantages + flat).astype(np.float32), cuts)
        parts = zip(trajectory.steps, np.split(advantages.astype(np.float32), cuts), targets, strict=True)
        return (
            [Credit(step_id=step.id, advantages=a, value_targets=target) for step, a, target in parts] if values else []
        )
