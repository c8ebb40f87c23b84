"""StepPO (arXiv 2604.18401 v4): one decision per step, a critic at the step's last prompt token, GAE over steps."""

from typing import Literal

import numpy as np
from pydantic import Field

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, broadcast, known_reward
from stepwell.algorithms.gae import gae
from stepwell.types import Credit, Group, Trajectory


class StepPOObjective(Objective):
    """The published actor objective: one length-normalised ratio per step, one clip decision per step."""

    ratio: Literal["token", "geo"] = "geo"
    """See `Objective.ratio`."""
    clip_low: float = Field(default=3e-4, ge=0, le=1)
    """See `Objective.clip_low`; the geometric mean moves far less than a token's ratio."""
    clip_high: float = Field(default=4e-4, ge=0)
    """See `Objective.clip_high`."""


class StepPO(AlgorithmConfig):
    """Step-aligned policy optimisation."""

    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per step."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ."""
    objective: StepPOObjective = StepPOObjective()
    """Geometric-mean ratio with its own clip, every step counts equally."""

    def build(self) -> Algorithm:
        """The algorithm with these settings."""

        def assign(group: Group, inputs: Inputs) -> list[Credit]:
            return [credit for trajectory in group.trajectories for credit in self._credit(trajectory, inputs)]

        return Algorithm(name="steppo", assign=assign, needs_values="step", whiten="step", objective=self.objective)

    def _credit(self, trajectory: Trajectory, inputs: Inputs) -> list[Credit]:
        known_reward(trajectory)
        values = np.array([inputs.values[step.id][0] for step in trajectory.steps], np.float64)
        advantages = gae(trajectory.step_rewards, values, gamma=self.gamma, lam=self.lam)
        return [
            Credit(
                step_id=step.id,
                advantages=broadcast(advantage, len(step.response_ids)),
                value_targets=np.array([advantage + value], np.float32),
            )
            for step, advantage, value in zip(trajectory.steps, advantages, values, strict=True)
        ]
