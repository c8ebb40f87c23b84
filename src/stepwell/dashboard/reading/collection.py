"""What the page on collection shows: what has come in lately, in intervals that do not move with the clock."""

from dataclasses import dataclass
from typing import Final

from stepwell.pool.activity import Activity
from stepwell.pool.base import Pool

WINDOWS: Final = {"15 min": 900.0, "1 h": 3600.0, "6 h": 6 * 3600.0, "24 h": 24 * 3600.0, "all": None}
"""Seconds back from now, by what a viewer calls them; None: everything."""
USUAL: Final = "1 h"
PARTS: Final = 60
"""Intervals of a window."""


@dataclass(frozen=True, slots=True)
class Collection:
    """What came in within a window."""

    activity: Activity
    now: float
    """Unix time in seconds."""

    @property
    def minutes(self) -> float:
        """How long the window is."""
        return max(self.now - self.activity.since, 1.0) / 60

    @property
    def trajectories(self) -> int:
        """Opened within it."""
        return sum(arrivals.trajectories for arrivals in self.activity.arrivals)

    @property
    def failed(self) -> int:
        """Of them."""
        return sum(arrivals.failed for arrivals in self.activity.arrivals)

    @property
    def steps(self) -> int:
        """Completed within it."""
        return sum(interval.steps for interval in self.activity.intervals)

    @property
    def response_tokens(self) -> int:
        """Sampled for those steps."""
        return sum(interval.response_tokens for interval in self.activity.intervals)

    @property
    def aborted(self) -> int:
        """Of the steps."""
        return dict(self.activity.finishes).get("abort", 0)


def read_collection(pool: Pool, window: str, now: float) -> Collection:
    """What came in within one of `WINDOWS` before `now`; of everything if there is no such window."""
    seconds = WINDOWS.get(window)
    if seconds is None:
        return Collection(pool.activity(None, now + 1, parts=PARTS), now)
    width = seconds / PARTS
    until = (now // width + 1) * width  # so that an interval holds the same steps whenever one looks
    return Collection(pool.activity(until - seconds, until, parts=PARTS), now)
