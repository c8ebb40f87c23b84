"""What came into a pool in a stretch of time: how much, from whom, how fast, and what went wrong."""

from dataclasses import dataclass

from stepwell.types import TrajectoryInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where trajectories come from."""

    source: str
    agent: str
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The trajectories of one origin that were opened in a stretch of time, as they are now."""

    origin: Origin
    trajectories: int
    failed: int
    steps: int
    response_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The steps that were completed in a part of a stretch of time."""

    start: float
    """Unix time in seconds."""
    steps: int
    response_tokens: int
    latency_p50: float | None
    """Seconds that at least half of them took at most; None without steps."""
    latency_p95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A trajectory that has not ended."""

    info: TrajectoryInfo
    channel: str
    steps: int
    response_tokens: int
    last_step_at: float | None
    """Unix time in seconds; None while it has no step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What came into a pool from `since` until just before `until`, Unix times in seconds."""

    since: float
    until: float
    arrivals: tuple[Arrivals, ...]
    """The origins of most trajectories first."""
    intervals: tuple[Interval, ...]
    """Of equal lengths, oldest first; all of them, also where nothing came."""
    finishes: tuple[tuple[str, int], ...]
    """(finish reason, steps)."""
    failures: tuple[tuple[str, int], ...]
    """(what was said about the end, failed trajectories), most first."""
    dropped: tuple[tuple[str, int], ...]
    """(reason, groups) of groups opened then that will never be ready, most first."""
    open: int
    """Trajectories that have not ended, whenever they were opened."""
    sessions: tuple[Session, ...]
    """The newest of them, newest first."""
