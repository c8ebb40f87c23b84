"""The dashboard on a large pool: how soon a page is there, how long a filter takes, and what open tabs cost ingest.

Pages are opened in Debian's Chromium, from the address to the load event, by which NiceGUI has drawn what was read.
Filters are timed where they are answered, without the browser's share. For ingest, the dashboard is served from the
process that appends, as a gateway does, with and without five open tabs by turns; the browser runs at the lowest
priority, as it would be on another machine.
"""

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import psutil
from fastapi import FastAPI
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.dashboard

from pool_load import BATCH, groups, ingest, timed
from report import Row, main

from stepwell.cli.invented import fill
from stepwell.cli.serving import served
from stepwell.curation.selection import Selection
from stepwell.dashboard.mounting import mount
from stepwell.dashboard.pages import PAGES
from stepwell.dashboard.visit import Desk
from stepwell.pool.base import Pool
from stepwell.pool.store import SQLitePool

STEPS, QUICK = 100_000, 5_000
_ROUNDS: Final = 5
_TABS: Final = ("/", "/collection", "/representation", "/optimisation", "/consumption")
_FILTERS: Final = {
    "by a word": Selection(text="lantern"),
    "by two words": Selection(text="Marn quarry"),
    "by state and reward": Selection(statuses=("terminated",), min_reward=0.5),
    "by agent, source and version": Selection(agents=("coder",), sources=("fork",), min_policy_version=20),
    "by tag": Selection(tags=("interesting",)),
    "by verdict": Selection(verdicts=("reject",)),
    "by time": Selection(created_after=time.time() - 3600),
}


def measure(quick: bool) -> Sequence[Row]:
    steps = QUICK if quick else STEPS
    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as progress:
        filling = progress.add_task(f"Making {steps:,} steps", total=steps)
        pool = SQLitePool.open(Path(folder) / "pool.sqlite")
        fill(pool, steps, heard=lambda made: progress.update(filling, advance=made))
        measuring = progress.add_task("Measuring", total=None)
        rows = [*_filters(pool), *_in_browser(pool, quick)]
        progress.update(measuring, total=1, completed=1)
        pool.close()
    return [Row(name="steps in the pool", value=steps, unit=""), *rows]


def _filters(pool: Pool) -> Iterator[Row]:
    pool.trajectories(Selection(text="lantern"), limit=1)  # the index of texts is made when it is first asked for
    for name, selection in _FILTERS.items():
        page = _median(partial(pool.trajectories, selection, limit=50))
        whole = _median(partial(pool.count, selection))
        yield Row(name=f"filter {name}: first page", value=1e3 * page, unit="ms", goal=300)
        yield Row(name=f"filter {name}: how many in all", value=1e3 * whole, unit="ms", goal=300)


def _in_browser(pool: Pool, quick: bool) -> Iterator[Row]:
    program = shutil.which("chromium")
    if program is None:
        sys.exit("the pages are measured in Debian's Chromium: apt-get install chromium")
    app = FastAPI(openapi_url=None)
    mount(app, Desk(pool=pool, decoders={}))
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with served(app) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield from _pages(browser, url, rounds=1 if quick else _ROUNDS)
        yield _slowed(browser, url, pool, seconds=2.0 if quick else 6.0, rounds=1 if quick else 3)
        browser.close()


def _pages(browser: Browser, url: str, rounds: int) -> Iterator[Row]:
    context = browser.new_context(base_url=url)
    paths = [page.path for page in PAGES if page.in_navigation]
    for path in [*paths, "/trajectory/traj-10-1", "/compare?left=traj-10-1&right=traj-10-2"]:
        times = []
        for _ in range(rounds + 1):
            tab = context.new_page()
            start = time.perf_counter()
            tab.goto(path, wait_until="load", timeout=120_000)
            times.append(time.perf_counter() - start)
            tab.close()
        yield Row(name=f"page {path}: ready", value=statistics.median(times[1:]), unit="s", goal=1.0)
    context.close()


def _slowed(browser: Browser, url: str, pool: Pool, seconds: float, rounds: int) -> Row:
    """How much longer a batch of steps takes while five tabs are open."""
    seeds = count(10**6)
    with _Appending(pool, seeds) as appending:
        alone, watched = [], []
        for _ in range(rounds):
            alone.append(appending.rate(seconds))
            with _open_tabs(browser, url):
                watched.append(appending.rate(seconds))
    slowdown = 1 - statistics.median(watched) / statistics.median(alone)
    return Row(name="ingest slowed by five open tabs", value=100 * slowdown, unit="%", goal=10)


@contextmanager
def _open_tabs(browser: Browser, url: str) -> Iterator[None]:
    context = browser.new_context(base_url=url)
    tabs = [context.new_page() for _ in _TABS]
    for tab, path in zip(tabs, _TABS, strict=True):
        tab.goto(path, timeout=120_000)
    for child in psutil.Process().children(recursive=True):
        if "chrom" in child.name():
            child.nice(19)
    yield
    context.close()


class _Appending:
    """Appends groups of made-up steps all the time, on a thread of its own."""

    def __init__(self, pool: Pool, seeds: Iterator[int]) -> None:
        self._pool = pool
        self._seeds = seeds
        self._done = 0
        self._spent = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def rate(self, seconds: float) -> float:
        """Steps per second that it appends, without the time to make them up, over so many seconds."""
        before, spent = self._done, self._spent
        time.sleep(seconds)
        return (self._done - before) / (self._spent - spent)

    def __enter__(self) -> "_Appending":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            made = groups([next(self._seeds)])
            self._spent += timed(partial(ingest, self._pool, made, BATCH))
            self._done += sum(len(steps) for _, steps, _ in made)


def _median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")
    main("The dashboard", measure)
