"""A selection: which trajectories and groups are wanted. It is data, so it can be saved, sent and shown."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from stepwell.config import Config, Count
from stepwell.curation.rules import AnyRule
from stepwell.types import Status, Trajectory, Verdict

Names = Annotated[tuple[str, ...], Field(max_length=10_000)]
"""As many as fit into one statement of every database."""
Tags = Annotated[tuple[str, ...], Field(max_length=100)]
"""Each is a condition of its own, and databases limit how many those may be."""


class Selection(Config):
    """All conditions hold together; a condition that is not given holds of everything."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"min_reward": 0.5, "rules": [{"use": "zero_advantage"}]}]}
    )

    channel: str | None = None
    """Collected for this channel."""
    task_ids: Names = ()
    """Attempts one of these tasks: its own, or else that of its group."""
    group_ids: Names = ()
    """Belongs to one of these groups."""
    trajectory_ids: Names = ()
    """Is one of these trajectories."""
    agents: Names = ()
    """Driven by one of these agents."""
    sources: Names = ()
    """Comes from one of these sources: `gateway`, `rollout`, `fork` (begun in a state put back), `trunk` (what others
    are forked from), `eval`, `import`, `events`."""
    statuses: tuple[Status, ...] = ()
    """Is in one of these states."""
    verdicts: tuple[Verdict, ...] = ("accept", "clear")
    """People's verdict on it is one of these."""
    tags: Tags = ()
    """Has all of these tags."""
    without_tags: Tags = ()
    """Has none of these tags."""
    min_reward: float | None = None
    """Its reward is known and at least this."""
    max_reward: float | None = None
    """Its reward is known and at most this."""
    min_policy_version: Count | None = None
    """All its tokens were sampled by this version or a later one."""
    max_policy_version: Count | None = None
    """All its tokens were sampled by this version or an earlier one."""
    min_steps: Count | None = None
    """It has at least so many steps."""
    max_steps: Count | None = None
    """It has at most so many steps."""
    created_after: float | None = None
    """Opened at this Unix time in seconds, or later."""
    created_before: float | None = None
    """Opened before this Unix time in seconds."""

    text: str = ""
    """Some step has all of these words, in what was sent or answered, whatever their case."""

    rules: tuple[AnyRule, ...] = ()
    """What is left out because of its quality; in this order."""

    def written(self) -> dict[str, Any]:
        """What it asks for, as JSON values, without what is as it would be anyway; `model_validate` reads it back."""
        values = self.model_dump(mode="json", exclude={"rules"}, exclude_defaults=True)
        rules = [{"use": rule.use, **rule.model_dump(mode="json", exclude_defaults=True)} for rule in self.rules]
        return values | ({"rules": rules} if rules else {})

    def sift(self, trajectories: Sequence[Trajectory]) -> list[str]:
        """Why each of the trajectories of a unit is left out by a rule; empty for those that stay."""
        reasons = [""] * len(trajectories)
        for rule in self.rules:
            left = [place for place, reason in enumerate(reasons) if not reason]
            for place, reason in rule.refused([trajectories[place] for place in left]).items():
                reasons[left[place]] = reason
        return reasons
