"""Leave out tokens of which nobody knows how they were sampled."""

from typing import Literal

from stepwell.curation.rules.base import Rule, main_steps
from stepwell.types import Trajectory


class Logprobs(Rule):
    """A step whose ids or log-probabilities do not come from the sampler: it is text only, or all of them are 0."""

    use: Literal["logprobs"] = "logprobs"
    """Names the rule."""

    def refuses(self, trajectory: Trajectory) -> str:
        """See `Rule`."""
        steps = [step for step in main_steps(trajectory) if len(step.response_ids)]
        # An engine that masks all tokens but one is sure of each of them, so one token of 0 is nothing odd.
        unknown = any(
            step.token_source != "engine" or (len(step.logprobs) > 1 and not step.logprobs.any()) for step in steps
        )
        return "no log-probs" if unknown else ""
