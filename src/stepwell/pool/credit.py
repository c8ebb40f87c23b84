"""What an update made of the steps that it was given."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCredit:
    """One step that was leased for an update: what it brought, or why it had no part."""

    step_id: str
    trajectory_id: str
    group_id: str
    index: int
    """Of the step in its trajectory."""
    tokens: int
    """R: response tokens."""
    advantage: float = 0.0
    """Mean over its response tokens, as the loss had it: whitened and bounded."""
    weight: float = 0.0
    """Its share in the loss, as if the update took all its steps at once: over an update they sum to 1."""
    left_out: str = ""
    """Why it had no part in the loss; empty: it had one."""
