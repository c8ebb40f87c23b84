"""Unix times in seconds in the zone of who looks: calendars end, numbers do not."""

from datetime import datetime, tzinfo
from typing import Final

TIMES: Final = ("created_after", "created_before")
"""Fields of a selection that are such times, which nobody writes by hand."""


def calendar(seconds: float, zone: tzinfo) -> datetime | None:
    """The date and time; None: no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds, zone)
    except (ValueError, OverflowError, OSError):
        return None


def moment(text: str, zone: tzinfo) -> float | None:
    """The Unix time that ISO 8601 gives, in `zone` unless it has an offset; None: it is none, or not in `zone`."""
    try:
        at = datetime.fromisoformat(text)
        seconds = (at if at.tzinfo else at.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return None if calendar(seconds, zone) is None else seconds


def written(seconds: float | None, zone: tzinfo) -> str:
    """To the minute, as fields for times take it; empty for None, and for what no calendar has."""
    at = None if seconds is None else calendar(seconds, zone)
    return "" if at is None else at.replace(tzinfo=None).isoformat(timespec="minutes")
