"""Leave out conversations whose ids do not go on from what was sampled."""

from typing import Literal

from pydantic import Field

from stepwell.curation.rules.base import Rule, main_steps
from stepwell.types import Trajectory


class Drift(Rule):
    """Too many steps whose prompt does not go on from what was sampled before."""

    use: Literal["drift"] = "drift"
    """Names the rule."""
    max_steps: int = Field(default=0, ge=0)
    """Steps that may have drifted."""

    def refuses(self, trajectory: Trajectory) -> str:
        """See `Rule`."""
        return "drift" if sum(step.drifted for step in main_steps(trajectory)) > self.max_steps else ""
