"""RLOO (Ahmadian et al. 2024, arXiv 2402.14740): a trajectory is compared with the mean of the others in its group."""

import numpy as np
import numpy.typing as npt

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, known_reward
from stepwell.algorithms.decisions import credit_evenly
from stepwell.algorithms.grpo import group_advantages
from stepwell.types import Credit, Group


def leave_one_out(returns: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """R − mean of the others = G/(G − 1)·(R − mean), for the returns [G] of a group; float64 [G].

    Unlike the mean of all, that of the others does not depend on the trajectory itself, so it biases nothing. In a
    group of one there is nobody to compare with: 0. Raises InvalidRecord if a return is NaN or infinite.
    """
    centred = group_advantages(returns, scale="none")
    return centred * (len(centred) / max(len(centred) - 1, 1))


class RLOO(AlgorithmConfig):
    """REINFORCE with a leave-one-out baseline."""

    objective: Objective = Objective()
    """Token ratio, clip 0.2, every step counts equally."""

    def build(self) -> Algorithm:
        """The algorithm with these settings."""

        def assign(group: Group, inputs: Inputs) -> list[Credit]:  # noqa: ARG001
            return credit_evenly(group, leave_one_out([known_reward(trajectory) for trajectory in group.trajectories]))

        return Algorithm(name="rloo", assign=assign, objective=self.objective)
