"""What a page is given: the pool, how to read its tokens, and who looks, from where, with which query."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Final
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import Request
from nicegui import ui

from stepwell.dashboard.addresses import link
from stepwell.dashboard.moments import calendar
from stepwell.dashboard.reading.drift import DriftLog
from stepwell.dashboard.runs import Runs
from stepwell.dashboard.tokens import Decoders
from stepwell.pool.base import Pool

ZONE_COOKIE: Final = "stepwell_zone"
"""Holds the browser's time zone, as the IANA calls it; the frame's script writes it."""

DARK_COOKIE: Final = "stepwell_dark"
"""Whether the browser was told to be dark (1) or light (0); without it, it is as its system is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who looks."""

    name: str = ""
    """Of the key that let them in; empty where there are none."""
    read_only: str = ""
    """Why they may change nothing; empty for those who may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What all pages of one dashboard share."""

    pool: Pool
    decoders: Decoders = field(default_factory=dict)
    visitor: Callable[[Request], Visitor] = lambda _: Visitor()
    """Who sent a request."""
    runs: Runs = dict
    """The folders of runs that can be found."""
    drift: DriftLog = field(default_factory=DriftLog)
    """Counts how prompts go on, for all pages once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One browser tab on one page."""

    pool: Pool
    decoders: Decoders
    read_only: str
    """Why nothing can be changed from here; empty where it can."""
    path: str
    """Of the page, as in the address bar: `/trajectory/traj-1`."""
    name: str = ""
    """Of the key that let the visitor in; empty where there are none."""
    query: Mapping[str, str] = field(default_factory=dict)
    """The state of the page that a deep link carries; values may be wrong, pages then use their defaults."""
    runs: Runs = dict
    """The folders of runs that can be found; reading them takes a while."""
    drift: DriftLog = field(default_factory=DriftLog)
    """Counts how prompts go on, for all pages once."""
    zone: tzinfo = UTC
    dark: bool | None = None
    """What the viewer chose; None: as their system is."""

    def time(self, seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
        """A Unix time in seconds, in the viewer's zone."""
        at = calendar(seconds, self.zone)
        return f"Unix time {seconds:g}" if at is None else at.strftime(form)

    def remember(self, **state: object) -> None:
        """Make the address bar a deep link to this state; what is empty or None is left out."""
        kept = {name: str(value) for name, value in state.items() if value is not False and value not in (None, "")}
        ui.navigate.history.replace(link(self.path, **kept))


def visit(desk: Desk, request: Request) -> Visit:
    """The visit that a request begins."""
    visitor = desk.visitor(request)
    return Visit(
        pool=desk.pool,
        decoders=desk.decoders,
        read_only=visitor.read_only,
        name=visitor.name,
        path=request.url.path,
        query=dict(request.query_params),
        runs=desk.runs,
        drift=desk.drift,
        zone=_zone(unquote(request.cookies.get(ZONE_COOKIE, ""))),
        dark={"1": True, "0": False}.get(request.cookies.get(DARK_COOKIE, "")),
    )


def _zone(name: str) -> tzinfo:
    """UTC for a browser that did not say, or says what nobody knows."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC
