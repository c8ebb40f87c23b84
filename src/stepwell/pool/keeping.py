"""What a pool keeps, and what it forgot."""

from dataclasses import dataclass

from pydantic import Field

from stepwell.config import Config
from stepwell.curation.selection import Selection


class Retention(Config):
    """What is kept. A trajectory goes if one of the limits says so and nothing protects it.

    A group goes as a whole or not at all. Protected are those in a dataset, those that a lease holds, and those of
    groups that are neither ready nor dropped, unless they are older than `max_age` as well.
    """

    max_age: float | None = Field(default=None, gt=0)
    """Seconds after which a trajectory may go, from when it was opened."""
    max_bytes: int | None = Field(default=None, ge=0)
    """Bytes of records (as stored, without indexes) that are kept; beyond them the oldest go."""
    max_lag: int | None = Field(default=None, ge=0)
    """Policy versions by which the newest token of a trajectory may lie behind the newest update."""
    selection: Selection | None = None
    """Only these may go; None: all. On its own it is no limit unless `all_selected`."""
    all_selected: bool = False
    """Everything that `selection` wants goes, whatever its age, size and version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was forgotten, or would be."""

    trajectories: int
    steps: int
    bytes: int
    """Of the records, as stored."""
