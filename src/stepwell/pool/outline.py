"""What is known of a step without its tokens and texts: enough to place it among others."""

from dataclasses import dataclass

from stepwell.types import FinishReason, Fork, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutline:
    """A step, without what makes it large. Fields are those of `Step`."""

    id: str
    index: int
    parent_id: str
    fork: Fork
    side: Side
    finish_reason: FinishReason
    policy_version_min: int
    policy_version_max: int
    prompt_tokens: int
    response_tokens: int
    created_at: float
    latency: float
