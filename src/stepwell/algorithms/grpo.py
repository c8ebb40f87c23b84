"""GRPO (Shao et al. 2024, arXiv 2402.03300): a trajectory is as good as its return stands out in its group."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, broadcast, known_reward
from stepwell.errors import InvalidRecord
from stepwell.types import Credit, Group


def group_advantages(
    returns: npt.ArrayLike, *, scale: Literal["std", "none"] = "std", eps: float = 1e-6
) -> npt.NDArray[np.float64]:
    """(R − mean) / (std + eps) over a group, std with Bessel's correction; without the division for scale="none".

    In a group of one, or of equals, nobody stands out: their advantages are 0.

    Args:
        returns: [G], one undiscounted return per trajectory.

    Returns:
        float64 [G].

    Raises:
        InvalidRecord: a return is NaN or infinite.
    """
    r = np.asarray(returns, np.float64)
    if not np.isfinite(r).all():
        raise InvalidRecord("a group holds a NaN or infinite return")
    if (r == r[:1]).all():  # said here, since their mean may differ from them by a rounding error
        return np.zeros_like(r)
    centred: npt.NDArray[np.float64] = r - r.mean()
    if scale == "std":
        centred /= r.std(ddof=1) + eps
    return centred


class GRPO(AlgorithmConfig):
    """Group-relative policy optimisation: every step of a trajectory gets the trajectory's advantage."""

    scale: Literal["std", "none"] = "std"
    """Divide by the group's standard deviation, or not (as Dr. GRPO)."""
    objective: Objective = Objective()
    """Token ratio, clip 0.2, every step counts equally."""

    def build(self) -> Algorithm:
        """The algorithm with these settings."""

        def assign(group: Group, inputs: Inputs) -> list[Credit]:  # noqa: ARG001
            advantages = group_advantages([known_reward(t) for t in group.trajectories], scale=self.scale)
            return [
                Credit(step_id=step.id, advantages=broadcast(advantage, len(step.response_ids)))
                for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
                for step in trajectory.steps
            ]

        return Algorithm(name="grpo", assign=assign, objective=self.objective)
