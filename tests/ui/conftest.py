"""A real browser on real pages: Debian's Chromium, driven by Playwright, on a server that the tests start."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from stepwell.cli.invented import fill
from stepwell.cli.serving import served
from stepwell.dashboard.mounting import mount
from stepwell.dashboard.visit import ZONE_COOKIE, Desk, Visitor
from stepwell.pool.base import Pool
from stepwell.pool.store import SQLitePool

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = [  # no sandbox as root, and nothing that looks for hosts elsewhere
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 60_000  # milliseconds; a bound for a machine under load, not an expectation
SMALL = 1_500
"""Steps of the pool that most tests look at."""

Serve = Callable[..., AbstractContextManager[str]]


@contextmanager
def serve(pool: Pool, port: int = 0, read_only: str = "") -> Iterator[str]:
    """The dashboard of `pool`; gives its URL."""
    app = FastAPI(openapi_url=None)
    desk = Desk(
        pool=pool,
        decoders={"tiny": lambda ids: " ".join(f"w{i}" for i in ids)},
        visitor=lambda _: Visitor(read_only=read_only),
    )
    mount(app, desk)
    with served(app, port=port, drain_seconds=1) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of a module; each page has a context of its own.

    Not for the session: while Playwright runs, this thread has an event loop, and tests of coroutines want their own.
    """
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser's tests take long: all of them run under `make test-ui` alone, those marked `short` always."""
    if os.environ.get("STEPWELL_UI"):
        return
    for item in items:
        if Path(item.path).parent == Path(__file__).parent and item.get_closest_marker("short") is None:
            item.add_marker(pytest.mark.skip(reason="a long test in a browser: make test-ui"))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a pool of made-up work."""
    path = tmp_path_factory.mktemp("made") / "pool.sqlite"
    pool = SQLitePool.open(path)
    fill(pool, SMALL)
    pool.close()
    return path


@pytest.fixture
def pool(made: Path, tmp_path: Path) -> Iterator[SQLitePool]:
    """A pool of made-up work, which may be changed."""
    shutil.copy(made, tmp_path / "pool.sqlite")
    with_work = SQLitePool.open(tmp_path / "pool.sqlite")
    yield with_work
    with_work.close()


@pytest.fixture
def url(pool: SQLitePool) -> Iterator[str]:
    """The dashboard of `pool`, which may write to it."""
    with serve(pool) as url:
        yield url


def say_zone(context: BrowserContext, url: str, zone: str) -> None:
    """As a browser that was here before, so that its first page is not drawn twice."""
    context.add_cookies([{"name": ZONE_COOKIE, "value": quote(zone, safe=""), "url": url}])


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """A tab; relative addresses are the dashboard's. What goes wrong in its scripts fails the test."""
    context = browser.new_context(base_url=url, timezone_id="Asia/Kathmandu")
    say_zone(context, url, "Asia/Kathmandu")
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    goto = page.goto

    def arrive(address: str) -> None:
        """As a person, who acts on what is there: no sooner than the page has found its server."""
        goto(address)
        page.wait_for_function("window.did_handshake === true")

    page.goto = arrive
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []
