"""Leave out what was cut off."""

from typing import Literal

from stepwell.curation.rules.base import Rule, main_steps
from stepwell.types import Trajectory


class Truncation(Rule):
    """A response that hit its token limit or was aborted, or an episode that was cut."""

    use: Literal["truncation"] = "truncation"
    """Names the rule."""
    responses: bool = True
    """Whether a response that was cut counts."""
    episodes: bool = False
    """Whether an episode that ended `truncated` counts."""

    def refuses(self, trajectory: Trajectory) -> str:
        """See `Rule`."""
        cut = self.responses and any(step.finish_reason != "stop" for step in main_steps(trajectory))
        return "truncation" if cut or (self.episodes and trajectory.status == "truncated") else ""
