"""Leave out groups from which a comparison learns nothing."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from stepwell.curation.rules.base import Rule
from stepwell.types import Trajectory


class ZeroAdvantage(Rule):
    """A group of several trajectories whose rewards are all the same."""

    use: Literal["zero_advantage"] = "zero_advantage"
    """Names the rule."""
    tolerance: float = Field(default=0.0, ge=0)
    """Rewards that differ by no more than this are the same."""

    def refused(self, trajectories: Sequence[Trajectory]) -> dict[int, str]:
        """See `Rule`."""
        rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
        same = len(rewards) > 1 and max(rewards) - min(rewards) <= self.tolerance
        return dict.fromkeys(range(len(trajectories)), "zero advantage") if same else {}
