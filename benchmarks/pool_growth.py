"""How a pool changes as it grows to a million steps: speed, bytes, and the memory of the process that writes it."""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pool_load as load
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from stepwell.pool.base import Pool
from stepwell.pool.store import SQLitePool, open_pool
from tests.pool.postgres import running

SIZES = (10_240, 102_400, 1_024_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One pool at one size."""

    database: str
    steps: int
    ingest: float
    """Steps per second since the size before, in batches, each on disk before the next."""
    bytes: float
    """Per step."""
    lease: float
    """Milliseconds, median of five."""
    acknowledge: float
    """Milliseconds, median of five."""
    listing: float
    """Milliseconds to list 200 trajectories, median of five."""
    resident: float
    """MB of this process, 50 MB of steps on their way included."""


_Report = Callable[[int], None]


def main(arguments: Sequence[str]) -> None:
    options = _parser().parse_args(arguments)
    sizes = [size for size in SIZES if size <= options.steps]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    points: list[Point] = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for name in options.database or _DATABASES:
            task = progress.add_task(f"{name}, steps", total=sizes[-1])
            points += _curve(name, sizes, partial(progress.advance, task))
    Console().print(_table(points))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(point) for point in points], indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pool.py --growth", description=__doc__)
    parser.add_argument("--steps", type=int, choices=SIZES, default=SIZES[-1], help="the largest size")
    parser.add_argument("--database", action="append", choices=list(_DATABASES), help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the points to FILE too")
    return parser


def _curve(name: str, sizes: Sequence[int], report: _Report) -> Iterator[Point]:
    with _DATABASES[name]() as (pool, size_in_bytes):
        count = 0
        for size in sizes:
            seconds = load.grow(pool, count, size, report)
            resident = load.resident()
            lease, acknowledge = load.lease_and_acknowledge(pool)
            yield Point(
                database=name,
                steps=size,
                ingest=(size - count) / seconds,
                bytes=size_in_bytes() / size,
                lease=lease * 1e3,
                acknowledge=acknowledge * 1e3,
                listing=load.median(partial(load.list_some, pool)) * 1e3,
                resident=resident / 1024,
            )
            count = size


_Opened = Iterator[tuple[Pool, Callable[[], int]]]


@contextmanager
def _sqlite() -> _Opened:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "growing.sqlite"
        pool = SQLitePool.open(path)
        try:
            yield pool, partial(load.sqlite_bytes, path)
        finally:
            pool.close()


@contextmanager
def _postgresql() -> _Opened:
    with running(durable=True) as server:
        url = server.create("growing")
        pool = open_pool(url)
        try:
            yield pool, partial(load.postgres_bytes, url)
        finally:
            pool.close()


_DATABASES = {"SQLite": _sqlite, "PostgreSQL": _postgresql}


def _table(points: Sequence[Point]) -> Table:
    table = Table(
        title="Pools as they grow", caption="ms to lease 256 steps, to acknowledge them, to list 200 trajectories"
    )
    table.add_column("database")
    for heading in ("steps", "steps/s", "B/step", "lease", "ack", "list", "RSS, MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        _, *values = asdict(point).values()
        table.add_row(point.database, *(f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values))
    return table
