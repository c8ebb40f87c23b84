"""How fast pools take steps in, read them back and lease them, and how many bytes a step takes.

SQLite and PostgreSQL (durable, on loopback) are measured at 10,240 and 102,400 steps; `--growth` shows how it goes on.
Where the CPU is counted, it is that of this process, all threads.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.pool
sys.path.insert(0, str(Path(__file__).parents[1]))  # for the PostgreSQL server of the tests
import pool_growth
import pool_http
import pool_load as load
from report import Row, main

from stepwell.pool.base import Pool
from stepwell.pool.store import SQLitePool, open_pool
from tests.pool.postgres import running

SIZES = (10_240, 102_400)
QUICK = SIZES[:1]


def measure(quick: bool) -> Sequence[Row]:
    sizes = QUICK if quick else SIZES
    with tempfile.TemporaryDirectory() as folder:
        return [
            *_sqlite(Path(folder), sizes),
            *_small(Path(folder), quick),
            *pool_http.rows(quick),
            *_postgresql(sizes),
        ]


def _sqlite(folder: Path, sizes: Sequence[int]) -> Iterator[Row]:
    path = folder / "growing.sqlite"
    with _opened(path) as pool:
        yield from _growing("SQLite", pool, sizes, partial(load.sqlite_bytes, path), goals=(30_000, 1_536, 50, 20))


def _postgresql(sizes: Sequence[int]) -> Iterator[Row]:
    with running(durable=True) as server:
        url = server.create("growing")
        pool = open_pool(url)
        yield from _growing("PostgreSQL", pool, sizes, partial(load.postgres_bytes, url), goals=(20_000, None, 50, 20))
        pool.close()


def _growing(
    name: str,
    pool: Pool,
    sizes: Sequence[int],
    size_in_bytes: Callable[[], int],
    goals: tuple[float, float | None, float, float],
) -> Iterator[Row]:
    """One pool at each of `sizes`; `goals`: steps per second, bytes per step, ms to lease and to list."""
    count, before = 0, 0.0
    for size in sizes:
        seconds, memory = load.grow(pool, count, size), load.resident()
        where = f"{name}, {size:,} steps"
        yield _row(f"{where}: ingest in batches of {load.BATCH}", (size - count) / seconds, "steps/s", goals[0])
        yield Row(name=f"{where}: bytes per step", value=size_in_bytes() / size, unit="bytes", goal=goals[1])
        lease, acknowledge = load.lease_and_acknowledge(pool)
        yield Row(name=f"{where}: lease of {load.BATCH} steps", value=lease * 1e3, unit="ms", goal=goals[2])
        yield Row(name=f"{where}: acknowledge", value=acknowledge * 1e3, unit="ms")
        listing = load.median(partial(load.list_some, pool))
        yield Row(name=f"{where}: list 200", value=listing * 1e3, unit="ms", goal=goals[3])
        if count:
            grown = (memory - before) / (size - count)
            yield Row(name=f"{name}, memory from {count:,} to {size:,} steps", value=grown, unit="KB/step", goal=0.1)
        count, before = size, load.resident()


def _small(folder: Path, quick: bool) -> Iterator[Row]:
    """What does not depend on the size of the pool."""
    with _opened(folder / "one.sqlite") as pool:
        some = load.groups(range(4 if quick else 32))
        seconds = load.timed(lambda: load.ingest(pool, some, 1))
        yield _row("SQLite, one commit per step", len(some) * load.PER_GROUP / seconds, "steps/s", 2_000)
    with _opened(folder / "sixteen.sqlite") as pool:
        some = load.groups(range(32))
        cpu = load.cpu(lambda: load.ingest(pool, some, 16)) / (len(some) * load.PER_GROUP)
        yield Row(name="SQLite, batches of 16", value=cpu * 1e3, unit="CPU ms/step", goal=0.2)
        yield Row(name="SQLite, read back", value=_read_back(pool, some) * 1e3, unit="CPU ms/step", goal=0.05)
    path = folder / "apart.sqlite"
    with _opened(path) as pool:
        alone = [load.apart(np.random.default_rng(seed)) for seed in range(2_048)]
        pool.put(*(info for info, _ in alone))
        for start in range(0, len(alone), load.BATCH):
            pool.put(*(step for _, step in alone[start : start + load.BATCH]))
    size = load.sqlite_bytes(path) / len(alone)
    yield Row(name="SQLite, bytes per step that extends no other", value=size, unit="bytes", goal=4_096)
    yield from _with_reader(folder / "read.sqlite", *((80, 4) if quick else (160, 12)))


def _read_back(pool: Pool, groups: Sequence[load.Made]) -> float:
    """CPU seconds per step, of the second time: the first group that is read also compiles the statements."""
    pool.group(groups[0][0][0].id)
    some = groups[1:17]
    return load.cpu(lambda: [pool.group(before[0].id) for before, _, _ in some]) / (len(some) * load.PER_GROUP)


def _with_reader(path: Path, groups: int, turns: int) -> Iterator[Row]:
    """Ingest while somebody looks at the pool twice a second, as the dashboard does, against ingest alone, in turns."""
    seconds = {True: 0.0, False: 0.0}
    with _opened(path) as pool:
        load.ingest(pool, load.groups(range(groups)), load.BATCH)
        for turn in range(turns):
            made = load.groups(range((turn + 1) * groups, (turn + 2) * groups))
            watched = turn % 2 == 0
            with _reader(path) if watched else nullcontext():
                seconds[watched] += load.timed(partial(load.ingest, pool, made, load.BATCH))
    slower = (seconds[True] / seconds[False] - 1) * 100
    yield Row(name="SQLite, ingest while the pool is watched", value=slower, unit="% slower", goal=10)


@contextmanager
def _reader(path: Path) -> Iterator[None]:
    """Another process that reads what the overview of the dashboard shows."""
    code = (
        "import sys, time\nfrom stepwell.pool.store import SQLitePool\n"
        "pool = SQLitePool.open(sys.argv[1], read_only=True)\nprint(flush=True)\n"
        "while True:\n pool.stats(); pool.trajectories(limit=50); pool.updates(); time.sleep(0.5)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _row(name: str, value: float, unit: str, goal: float) -> Row:
    return Row(name=name, value=value, unit=unit, goal=goal, better="higher")


@contextmanager
def _opened(path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(path)
    try:
        yield pool
    finally:
        pool.close()


if __name__ == "__main__":
    if "--growth" in sys.argv:
        pool_growth.main([argument for argument in sys.argv[1:] if argument != "--growth"])
    else:
        main("Pools", measure)
