"""GRPO (Shao et al. 2024, arXiv 2402.03300): a trajectory is as good as its return stands out in its group.

Dr. GRPO (Liu et al. 2025, arXiv 2503.20783) is `scale: none` with `objective.aggregation: per_token`. It divides the
sum over all tokens by a constant, trajectories times the longest response allowed; here it is divided by the tokens
that there are. That is another factor per update, the same for all tokens in it: their weights relative to each other
are Dr. GRPO's, and AdamW nearly cancels the factor.

GSPO (Zheng et al. 2025, arXiv 2507.18071) is `objective: {ratio: sequence, aggregation: per_sequence}`.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, known_reward
from stepwell.algorithms.decisions import credit_evenly
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
            returns = [known_reward(trajectory) for trajectory in group.trajectories]
            return credit_evenly(group, group_advantages(returns, scale=self.scale))

        return Algorithm(name="grpo", assign=assign, objective=self.objective)
