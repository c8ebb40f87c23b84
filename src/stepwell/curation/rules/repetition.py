"""Leave out responses that go round in circles."""

from typing import Literal

import numpy as np
from pydantic import Field

from stepwell.curation.rules.base import Rule, main_steps
from stepwell.types import Ids, Trajectory


class Repetition(Rule):
    """A response of which too large a share repeats itself."""

    use: Literal["repetition"] = "repetition"
    """Names the rule."""
    length: int = Field(default=8, ge=1)
    """Tokens in a row that count as a repetition when they come once more."""
    max_share: float = Field(default=0.5, ge=0, le=1)
    """Largest share of all such runs of a response that may have come before in it."""
    min_tokens: int = Field(default=64, ge=1)
    """Responses that are shorter may repeat themselves."""

    def refuses(self, trajectory: Trajectory) -> str:
        """See `Rule`."""
        responses = (step.response_ids for step in main_steps(trajectory))
        circling = any(
            len(ids) >= self.min_tokens and repeated_share(ids, self.length) > self.max_share for ids in responses
        )
        return "repetition" if circling else ""


def repeated_share(ids: Ids, length: int) -> float:
    """Share of the runs of `length` tokens in `ids`, int32 [R], that occurred before; 0 if there is none."""
    if len(ids) < length:
        return 0.0
    runs = np.lib.stride_tricks.sliding_window_view(ids, length)
    return 1.0 - len(np.unique(runs, axis=0)) / len(runs)
