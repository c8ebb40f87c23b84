"""StepPO, later CAPO (arXiv 2604.18401): one decision per step, and a critic at its last prompt token.

One paper, two names: v4 has one length-normalised ratio per step, v5 one that is centred and scaled by 1/√L. How credit
is assigned did not change: generalised advantage estimation over steps.
"""

from typing import ClassVar

import numpy as np
from pydantic import Field

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, Scope, broadcast
from stepwell.algorithms.decisions import critic_values, decisions, value_after
from stepwell.algorithms.gae import gae
from stepwell.algorithms.objective import Ratio
from stepwell.types import Credit, Group, Trajectory


class StepPOObjective(Objective):
    """The actor objective of v4: one geometric-mean ratio and one clip decision per step, every step counts equally."""

    ratio: Ratio = "geo"
    """See `Objective.ratio`."""


class CAPOObjective(StepPOObjective):
    """The actor objective of v5: the step's ratio is centred and scaled by 1/√L."""

    ratio: Ratio = "sqrt"
    """See `Objective.ratio`."""


class StepPO(AlgorithmConfig):
    """Step-aligned policy optimisation."""

    NAME: ClassVar[str] = "steppo"

    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per step."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ."""
    whiten: Scope = "step"
    """Advantages are brought to mean 0 and deviation 1 over all steps, or tokens, of an update."""
    bootstrap_on_truncation: bool = True
    """A trajectory that a limit cut off goes on, in the critic's opinion, from the state that it was left in, if that
    was recorded. False: it ended there, as in the authors' code."""
    objective: StepPOObjective = StepPOObjective()
    """The loss."""

    def build(self) -> Algorithm:
        """The algorithm with these settings."""

        def assign(group: Group, inputs: Inputs) -> list[Credit]:
            return [credit for trajectory in group.trajectories for credit in self._credit(trajectory, inputs)]

        return Algorithm(
            name=self.NAME, assign=assign, needs_values="step", whiten=self.whiten, objective=self.objective
        )

    def _credit(self, trajectory: Trajectory, inputs: Inputs) -> list[Credit]:
        steps, rewards = decisions(trajectory)
        values = np.array([critic_values(inputs, step, 1)[0] for step in steps], np.float64)
        last = value_after(trajectory, inputs, bootstrap=self.bootstrap_on_truncation)
        advantages = gae(rewards, values, gamma=self.gamma, lam=self.lam, last_value=last)
        return [
            Credit(
                step_id=step.id,
                advantages=broadcast(advantage, len(step.response_ids)),
                value_targets=np.array([advantage + value], np.float32),
            )
            for step, advantage, value in zip(steps, advantages, values, strict=True)
        ]


class CAPO(StepPO):
    """Critic-guided action-aligned policy optimisation: StepPO with the ratio of the paper's version 5."""

    NAME: ClassVar[str] = "capo"

    objective: CAPOObjective = CAPOObjective()
    """The loss."""
