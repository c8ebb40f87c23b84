"""The dashboard's pages, mounted on an app that may have other routes: `/` and `/trajectory/{id}`.

A page reads the pool in a thread, so that the event loop, which may be the gateway's, is never held up; and it reads
again only when the pool's cursor has moved.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import Final

from fastapi import FastAPI
from nicegui import core, ui
from starlette.routing import Match, Mount
from starlette.types import Scope

from stepwell.dashboard.overview import OverviewView
from stepwell.dashboard.reading import read_overview
from stepwell.dashboard.tokens import Decoders
from stepwell.dashboard.trajectory import TrajectoryView
from stepwell.dashboard.tree import read_tree
from stepwell.errors import NotFound, PoolError
from stepwell.pool.base import Pool

REFRESH: Final = 1.5
"""Seconds between two looks at the pool's cursor."""

_SLOWEST: Final = 60.0  # seconds that reading a large pool may take before the browser is told that it failed

_STYLE: Final = """
.sw-page { max-width: 1180px; margin: 0 auto; width: 100%; }
.sw-quiet { opacity: 0.65; }
.sw-text { white-space: pre-wrap; overflow-wrap: anywhere; }
.sw-tokens { white-space: pre-wrap; overflow-wrap: anywhere; font-family: ui-monospace, monospace; line-height: 1.7; }
.sw-tokens span { border-radius: 3px; }
.sw-tokens span:hover { outline: 1px solid currentColor; }
.body--dark .q-card { border: 1px solid rgba(255, 255, 255, 0.12); }
.body--light { background: #f7f8fa; }
"""


def mount(app: FastAPI, pool: Pool, decoders: Decoders = MappingProxyType({})) -> None:
    """Add the dashboard to `app`, below its own routes: call it after they are registered.

    NiceGUI has one set of pages per process, so these belong to the app that was mounted last.

    Args:
        app: the gateway's app, or an empty one.
        pool: is only read.
        decoders: token ids to text, by the model's name; tokens of other models are shown as ids.
    """
    core.app.middleware_stack = None  # lets it be set up again, after an app of this process that ran before
    core.app.user_middleware.clear()
    register(pool, decoders)
    ui.run_with(app, title="Stepwell", dark=None, show_welcome_message=False)
    everything = app.router.routes.pop()  # NiceGUI's mount takes all paths; the app must answer for the others itself
    if not isinstance(everything, Mount):
        raise TypeError(f"NiceGUI was expected to mount itself last, found {everything!r}")
    app.router.routes.append(_PagesOnly("/", everything.app))


class _PagesOnly(Mount):
    """NiceGUI on the dashboard's own paths alone, so that a wrong path of the API keeps the app's own kind of 404."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As a mount, for the paths below."""
        path = scope.get("path", "")
        ours = path in ("/", "/favicon.ico") or path.startswith(("/trajectory/", "/_nicegui"))
        return super().matches(scope) if ours else (Match.NONE, {})


def register(pool: Pool, decoders: Decoders = MappingProxyType({})) -> None:
    """Register the pages with NiceGUI, for an app that runs it already."""

    async def overview() -> None:
        view = OverviewView(_frame())
        await _follow(pool, lambda: _show_overview(pool, view))

    async def trajectory(trajectory_id: str) -> None:
        view = TrajectoryView(_frame(), decoders, lambda shown: asyncio.to_thread(read_tree, pool, shown))
        await _follow(pool, lambda: _show_trajectory(pool, view, trajectory_id))

    ui.page("/", response_timeout=_SLOWEST)(overview)
    ui.page("/trajectory/{trajectory_id}", response_timeout=_SLOWEST)(trajectory)


async def _show_overview(pool: Pool, view: OverviewView) -> None:
    view.show(await asyncio.to_thread(read_overview, pool))


async def _show_trajectory(pool: Pool, view: TrajectoryView, trajectory_id: str) -> None:
    try:
        view.show(await asyncio.to_thread(pool.trajectory, trajectory_id))
    except NotFound:
        view.show_missing(trajectory_id)


async def _follow(pool: Pool, show: Callable[[], Awaitable[None]]) -> None:
    """Show now, and again whenever the pool has grown. A pool that cannot be read is said so, and tried again."""
    problem = ui.label().classes("sw-page text-negative")
    shown: int | None = None

    async def look() -> None:
        nonlocal shown
        try:
            cursor = (await asyncio.to_thread(pool.stats)).cursor
            if cursor != shown:
                await show()
                shown = cursor
            problem.text = ""
        except PoolError as error:
            problem.text = f"The pool cannot be read: {error}"
        problem.set_visibility(bool(problem.text))

    await look()
    ui.timer(REFRESH, look, immediate=False)


def _frame() -> ui.column:
    """Header and an empty column for the page's content."""
    ui.add_css(_STYLE)
    dark = ui.dark_mode(value=None)

    async def switch() -> None:  # the browser is asked, because until the first switch it follows the system
        dark.set_value(not await ui.run_javascript("Quasar.Dark.isActive"))

    with ui.row().classes("sw-page items-center"):
        ui.link("Stepwell", "/").classes("text-xl font-bold no-underline text-inherit")
        ui.label("steps, as they are collected and learnt from").classes("sw-quiet")
        ui.space()
        with ui.button(icon="contrast", on_click=switch).props("flat round dense"):
            ui.tooltip("Light or dark")
    return ui.column().classes("sw-page gap-4")
