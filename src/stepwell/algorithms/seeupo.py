"""SeeUPO (arXiv 2602.06554): turns are agents that share parameters and reward, updated one after the other.

Credit is the reward minus the group's mean, for every turn. What distinguishes it is the update: the last turn first,
and each earlier one with the advantage multiplied by what the later turns' updates did to their probabilities:
M_{T+1} = Ã and M_t = π_new(a_t)/π_old(a_t) · M_{t+1} (`stepwell.algorithms.base.Sweep`).
"""

from typing import Final, Literal

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, Scope, Sweep, known_reward
from stepwell.algorithms.decisions import credit_evenly
from stepwell.algorithms.grpo import group_advantages
from stepwell.algorithms.objective import Ratio
from stepwell.types import Credit, Group

Order = Literal["reverse", "forward", "random"]

RELEASED_BOUNDS: Final = (0.8, 1.2)
"""Within which the released code keeps each turn's ratio, and their product."""
RELEASED_ADVANTAGES: Final = 3.0
"""Within ± which it keeps whitened advantages."""


class SeeUPOObjective(Objective):
    """The geometric-mean ratio of a turn, as GSPO has it of a sequence; every step counts equally."""

    ratio: Ratio = "geo"
    """See `Objective.ratio`."""


class SeeUPO(AlgorithmConfig):
    """Sequential policy optimisation turn by turn, the last turn first."""

    mode: Literal["paper", "released"] = "paper"
    """`paper`: a turn's ratio is the product over its tokens, against the policy before the update. `released`: their
    geometric mean, against the policy before that turn's own step, and each ratio and their product kept within
    0.8 to 1.2, whitened advantages within ±3."""
    order: Order = "reverse"
    """Which turn is updated first."""
    whiten: Scope = "step"
    """Advantages are brought to mean 0 and deviation 1 over all steps of an update."""
    objective: SeeUPOObjective = SeeUPOObjective()
    """The loss of each turn."""

    def build(self) -> Algorithm:
        """The algorithm with these settings."""

        def assign(group: Group, inputs: Inputs) -> list[Credit]:  # noqa: ARG001
            returns = [known_reward(trajectory) for trajectory in group.trajectories]
            return credit_evenly(group, group_advantages(returns, scale="none"))

        released = self.mode == "released"
        return Algorithm(
            name="seeupo",
            assign=assign,
            sweep=_released(self.order) if released else Sweep(order=self.order),
            whiten=self.whiten,
            advantage_bound=RELEASED_ADVANTAGES if released else None,
            objective=self.objective,
        )


def _released(order: Order) -> Sweep:
    return Sweep(order=order, ratio="geo", bounds=RELEASED_BOUNDS, recompute_old=True)
