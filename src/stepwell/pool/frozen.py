"""What a dataset is to everybody: its name, its version, and where it comes from."""

from dataclasses import dataclass

from stepwell.config import Config
from stepwell.curation.selection import Selection
from stepwell.pool.lease import Unit


class Manifest(Config):
    """Where a dataset comes from and what is in it."""

    selection: Selection
    """What was wanted, rules included."""
    cursor: int
    """The place in the log up to which the pool was looked at."""
    software: str
    """Version of Stepwell that froze it."""
    units: int
    """Groups or trajectories that it consists of."""
    trajectories: int
    """In all its units."""
    steps: int
    """Of all its trajectories."""
    tokens: int
    """Prompts included."""
    policy_version_min: int | None
    """None without a step."""
    policy_version_max: int | None
    """None without a step."""
    reward_mean: float | None
    """Over the trajectories; None without any."""
    agents: tuple[str, ...]
    """Who drove them."""
    sources: tuple[str, ...]
    """Where they come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """One version of a dataset."""

    name: str
    version: int
    unit: Unit
    digest: str
    """SHA-256 of the content, hexadecimal."""
    created_at: float
    """Unix time in seconds."""
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDiff:
    """What one version has and another has not: ids of trajectories."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    """In both, with other steps, rewards or another end."""
