"""What all pages have around them: navigation, colours, the viewer's zone, and following a pool that grows."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

from nicegui import ui

from stepwell.dashboard.visit import DARK_COOKIE, ZONE_COOKIE, Visit
from stepwell.errors import PoolError

REFRESH: Final = 1.5
"""Seconds between two looks at the pool's cursor."""
REST: Final = 30.0
"""A page that is slow to show rests for so many times as long: five open tabs take a sixth of a core at most."""

_UTILITIES: Final = (Path(__file__).parent / "utilities.css").read_text()
_STYLE: Final = """
.sw-page { max-width: 1280px; margin: 0 auto; width: 100%; }
.sw-quiet { opacity: 0.75; }
.sw-text { white-space: pre-wrap; overflow-wrap: anywhere; }
.sw-tokens { white-space: pre-wrap; overflow-wrap: anywhere; font-family: ui-monospace, monospace; line-height: 1.7; }
.sw-tokens span { border-radius: 3px; }
.sw-tokens span:hover { outline: 1px solid currentColor; }
.sw-nav a { color: inherit !important; text-decoration: none; padding: 4px 10px; border-radius: 6px;
  white-space: nowrap; }
.sw-nav a:hover, .sw-nav a:focus-visible { background: rgba(128, 128, 128, 0.18); }
.sw-nav a[aria-current=page] { background: rgba(128, 128, 128, 0.25); font-weight: 600; }
.sw-nav { overflow-x: auto; }
.nicegui-content { padding: 12px; }
.nicegui-content, .q-dialog { overflow-wrap: anywhere; }
.sw-flow { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; width: 100%;
  list-style: none; margin: 0; padding: 0; }
.sw-stage { display: flex; flex-direction: column; height: 100%; padding: 12px 16px; border-radius: 4px;
  border: 1px solid rgba(128, 128, 128, 0.25); border-left: 4px solid var(--q-primary);
  color: inherit !important; text-decoration: none; }
.sw-stage:hover { background: rgba(128, 128, 128, 0.1); }
.sw-chart { flex: 1 1 420px; min-width: 0; }
.q-card { box-shadow: none; border: 1px solid rgba(128, 128, 128, 0.25); }
.q-table__container { overflow-x: auto; }
.sw-clip { max-width: 21em; overflow: hidden; text-overflow: ellipsis; }
.sw-words { min-width: 12em; white-space: pre-wrap; overflow-wrap: anywhere; }
.body--light { background: #f7f8fa; --q-primary: #1d63a8 !important; --q-positive: #15713a !important;
  --q-negative: #b3121d !important; --q-warning: #8a5300 !important; }
@layer overrides {
  :is(.q-btn, .q-toggle, .q-checkbox, .q-radio, .q-item, .q-chip, th):focus-visible {
    outline: 2px solid #5898d4 !important; outline-offset: 1px; }
  .q-table__bottom .q-btn { color: inherit !important; }
  .q-chip__icon--remove, .q-field__focusable-action { color: inherit !important; opacity: 1 !important; }
  .body--light .text-orange-8 { color: #a34a00 !important; }
  .body--light .text-grey { color: #5c6066 !important; }
  .body--dark .text-negative { color: #ff8a80 !important; }
  .body--dark .bg-primary, .body--dark .bg-primary .block { color: #000 !important; }
}
.nicegui-link:not(.text-inherit), .nicegui-markdown a { color: var(--q-primary); }
.body--dark { color-scheme: dark; }
:focus-visible { outline: 2px solid #5898d4; outline-offset: 1px; }
"""

_LOST: Final = 5
"""Seconds between two questions of a page that lost its server."""

# Runs before anything is drawn: a browser that has not said its zone, or has moved, says it and asks again, once.
_ZONE_SCRIPT: Final = f"""
<script>
(() => {{
  const zone = encodeURIComponent(Intl.DateTimeFormat().resolvedOptions().timeZone);
  const said = document.cookie.split("; ").includes("{ZONE_COOKIE}=" + zone);
  if (said) return;
  document.cookie = "{ZONE_COOKIE}=" + zone + "; path=/; SameSite=Strict; max-age=31536000";
  // not before it is loaded: an answer that nobody waits for is an error in the server's log
  if (document.cookie.includes("{ZONE_COOKIE}=" + zone)) addEventListener("load", () => location.reload());
}})();
// A server that knows one's key no more refuses the socket; asked for the page, it leads to the login.
setInterval(async () => {{
  if (!window.socket || window.socket.connected) return;
  const asked = fetch(location.href, {{headers: {{Accept: "text/html"}}, redirect: "manual"}});
  const answer = await asked.catch(() => null);
  if (answer?.type === "opaqueredirect") location.reload();
}}, {_LOST * 1000});
// On a phone the navigation is wider than the window: begin with where one is.
addEventListener("load", () => document.querySelector(".sw-nav [aria-current]")?.scrollIntoView({{inline: "center"}}));
</script>"""


def frame(title: str, visit: Visit, navigation: Iterable[tuple[str, str]]) -> ui.column:
    """Header and an empty column for the page's content.

    Args:
        title: the page's own name, for the browser's tab and for who hears the page read aloud.
        visit: whose page it is.
        navigation: (path, name) of the pages that can be reached from everywhere.
    """
    ui.page_title(f"{title} · Stepwell" if title else "Stepwell")
    ui.add_css(_UTILITIES)
    ui.add_css(_STYLE)
    ui.add_head_html(_ZONE_SCRIPT)
    dark = ui.dark_mode(value=visit.dark)

    async def switch() -> None:  # the browser is asked, because until the first switch it follows the system
        dark.set_value(not await ui.run_javascript("Quasar.Dark.isActive"))
        ui.run_javascript(
            f"document.cookie = '{DARK_COOKIE}={dark.value:d}; path=/; SameSite=Strict; max-age=31536000'"
        )

    with ui.row().classes("sw-page items-center no-wrap gap-2"):
        ui.link("Stepwell", "/").classes("text-xl font-bold no-underline text-inherit")
        with ui.element("nav").classes("sw-nav flex no-wrap gap-1 grow").props('aria-label="Stages"'):
            for path, name in navigation:
                ui.link(name, path).props('aria-current="page"' if path == visit.path else "")
        if visit.name:
            ui.link("Log out", "/logout").classes("text-sm whitespace-nowrap").tooltip(f"in with the key {visit.name}")
        with ui.button(icon="contrast", on_click=switch).props('flat round dense aria-label="Light or dark"'):
            ui.tooltip("Light or dark")
    with ui.element("div").classes("sw-page"):
        ui.label(title).classes("sr-only").props('role="heading" aria-level="1"')
        if visit.read_only:
            ui.label(visit.read_only).classes("text-sm sw-quiet pb-2")
        return ui.column().classes("w-full gap-4")


async def follow(visit: Visit, show: Callable[[], Awaitable[None]]) -> None:
    """Show now, and again whenever the pool has grown. A pool that cannot be read is said so, and tried again."""
    problem = ui.label().classes("sw-page text-negative").props('role="alert"')
    shown: int | None = None
    resting_until = 0.0

    async def look() -> None:
        nonlocal shown, resting_until
        began = time.monotonic()
        if began < resting_until:
            return
        try:
            cursor = await asyncio.to_thread(visit.pool.cursor)
            if cursor != shown:
                await show()
                shown = cursor
                resting_until = time.monotonic() + REST * (time.monotonic() - began)
            problem.text = ""
        except PoolError as error:
            problem.text = f"The pool cannot be read: {error}"
        problem.set_visibility(bool(problem.text))

    await look()
    ui.timer(REFRESH, look, immediate=False)
