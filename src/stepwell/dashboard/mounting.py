"""The dashboard on an app that may have other routes: `mount`, and the table of pages served by NiceGUI.

A page reads the pool in a thread, so that the event loop, which may be the gateway's, is never held up; and it reads
again only when the pool's cursor has moved.
"""

from typing import Final

from fastapi import FastAPI, Request
from nicegui import core, ui
from starlette.routing import Match, Mount
from starlette.types import Scope

from stepwell.dashboard.frame import frame
from stepwell.dashboard.pages import PAGES, Page
from stepwell.dashboard.visit import Desk, visit

_SLOWEST: Final = 60.0  # seconds that reading a large pool may take before the browser is told that it failed
_NAVIGATION: Final = tuple((page.path, page.name) for page in PAGES if page.in_navigation)
_PATHS: Final = frozenset(page.path for page in PAGES if "{" not in page.path) | {"/favicon.ico"}
_FOLDERS: Final = (*(page.path.partition("{")[0] for page in PAGES if "{" in page.path), "/_nicegui")


def mount(app: FastAPI, desk: Desk) -> None:
    """Add the dashboard to `app`, below its own routes: call it after they are registered.

    NiceGUI has one set of pages per process, so these belong to the app that was mounted last.

    Args:
        app: the gateway's app, or an empty one.
        desk: what the pages show, and who may change it.
    """
    core.app.middleware_stack = None  # lets it be set up again, after an app of this process that ran before
    core.app.user_middleware.clear()
    register(desk)
    ui.run_with(app, title="Stepwell", dark=None, language="en-US", tailwind=False, show_welcome_message=False)
    everything = app.router.routes.pop()  # NiceGUI's mount takes all paths; the app must answer for the others itself
    if not isinstance(everything, Mount):
        raise TypeError(f"NiceGUI was expected to mount itself last, found {everything!r}")
    app.router.routes.append(_PagesOnly("/", everything.app))


class _PagesOnly(Mount):
    """NiceGUI on the dashboard's own paths alone, so that a wrong path of the API keeps the app's own kind of 404."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As a mount, for the paths below."""
        path = scope.get("path", "")
        ours = path in _PATHS or path.startswith(_FOLDERS)
        return super().matches(scope) if ours else (Match.NONE, {})


def register(desk: Desk) -> None:
    """Register the pages with NiceGUI, for an app that runs it already."""
    for page in PAGES:
        _register(page, desk)


def _register(page: Page, desk: Desk) -> None:
    async def build(request: Request) -> None:
        here = visit(desk, request)
        await page.build(frame(page.name, here, _NAVIGATION), here, request.path_params)

    ui.page(page.path, response_timeout=_SLOWEST)(build)
