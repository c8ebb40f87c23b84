"""Leave out what a judge, or any other reward part, thinks little of."""

from typing import Literal

from stepwell.curation.rules.base import Rule
from stepwell.types import Trajectory


class Score(Rule):
    """A reward part, such as the score that a judge gave, outside a range."""

    use: Literal["score"] = "score"
    """Names the rule."""
    part: str
    """Name of the reward part."""
    min: float | None = None
    """Lowest score that stays."""
    max: float | None = None
    """Highest score that stays."""
    missing: bool = False
    """Whether a trajectory without this part stays."""

    def refuses(self, trajectory: Trajectory) -> str:
        """See `Rule`."""
        value = dict(trajectory.reward_parts).get(self.part)
        if value is None:
            return "" if self.missing else f"no {self.part}"
        low = self.min is not None and value < self.min
        return self.part if low or (self.max is not None and value > self.max) else ""
