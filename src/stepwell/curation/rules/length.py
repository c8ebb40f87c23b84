"""Leave out what is too short or too long."""

from typing import Literal

from pydantic import Field

from stepwell.curation.rules.base import Rule, main_steps
from stepwell.types import Trajectory


class Length(Rule):
    """Tokens of responses, and of prompts and responses together, outside a range."""

    use: Literal["length"] = "length"
    """Names the rule."""
    min_response: int = Field(default=0, ge=0)
    """Tokens that every response must have."""
    max_response: int | None = Field(default=None, ge=0)
    """Tokens that no response may exceed."""
    max_context: int | None = Field(default=None, ge=1)
    """Tokens that no prompt with its response may exceed."""

    def refuses(self, trajectory: Trajectory) -> str:
        """See `Rule`."""
        for step in main_steps(trajectory):
            response = len(step.response_ids)
            if response < self.min_response or _over(response, self.max_response):
                return "response length"
            if _over(len(step.prompt_ids) + response, self.max_context):
                return "context length"
        return ""


def _over(count: int, most: int | None) -> bool:
    return most is not None and count > most
