"""How fast pools take steps in, read them back and lease them, how many bytes a step takes, and how that grows.

A step has 1,152 tokens on average: trajectories of 8 steps, each prompt the whole conversation so far and 128 new
tokens, 128 tokens sampled; 8 trajectories make a group. SQLite is measured at each size of the growth curve (10,240,
102,400 and 1,024,000 steps), PostgreSQL (durable, on loopback) at the first two. Where the CPU is counted, it is that
of this process, all threads.
"""

import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.pool
sys.path.insert(0, str(Path(__file__).parents[1]))  # for the PostgreSQL server of the tests
import psycopg
from report import Row, main

from stepwell.curation.selection import Selection
from stepwell.pool.base import Pool
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool, open_pool
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo
from tests.pool.postgres import running

STEPS, RESPONSE, OBSERVATION = 8, 128, 128
FIRST_PROMPT = 128
SIZE = 8  # trajectories per group
PER_GROUP = SIZE * STEPS
BATCH = 256
SIZES = (10_240, 102_400, 1_024_000)
QUICK = 10_240


def measure(quick: bool) -> Sequence[Row]:
    sizes = (QUICK,) if quick else SIZES
    with tempfile.TemporaryDirectory() as folder:
        return [*_sqlite(Path(folder), sizes), *_small(Path(folder), quick), *_postgresql(sizes[:2])]


def _sqlite(folder: Path, sizes: Sequence[int]) -> Iterator[Row]:
    """The growth curve of one pool."""
    path, count = folder / "growing.sqlite", 0
    pool = SQLitePool.open(path)
    memory = _resident()
    for size in sizes:
        seconds = _grow(pool, count, size)
        yield _row(f"SQLite, ingest in batches of {BATCH} up to {size:,}", (size - count) / seconds, "steps/s", 30_000)
        count = size
        yield Row(name=f"bytes per step at {size:,}", value=_bytes(path) / size, unit="bytes", goal=1_536)
        yield from _at_size(pool, f"SQLite, {size:,} steps", lease_goal=50, listing_goal=20)
    grown = (_resident() - memory) / count
    yield Row(name=f"memory over {count:,} steps", value=grown, unit="KB/step", goal=0.1 if count > QUICK else None)
    pool.close()


def _at_size(pool: Pool, where: str, *, lease_goal: float | None, listing_goal: float | None) -> Iterator[Row]:
    lease, acknowledge = _lease(pool)
    yield Row(name=f"{where}: lease of {BATCH} steps", value=lease * 1e3, unit="ms", goal=lease_goal)
    yield Row(name=f"{where}: acknowledge", value=acknowledge * 1e3, unit="ms")
    listing = _median(lambda: pool.trajectories(Selection(min_reward=0.5), limit=200))
    yield Row(name=f"{where}: list 200", value=listing * 1e3, unit="ms", goal=listing_goal)


def _small(folder: Path, quick: bool) -> Iterator[Row]:
    """What does not depend on the size of the pool."""
    with _opened(folder / "one.sqlite") as pool:
        some = _groups(range(4 if quick else 32))
        seconds = _timed(lambda: _ingest(pool, some, 1))
        yield _row("SQLite, one commit per step", len(some) * PER_GROUP / seconds, "steps/s", 2_000)
    with _opened(folder / "sixteen.sqlite") as pool:
        some = _groups(range(32))
        cpu = _cpu(lambda: _ingest(pool, some, 16)) / (len(some) * PER_GROUP)
        yield Row(name="SQLite, batches of 16", value=cpu * 1e3, unit="CPU ms/step", goal=0.2)
        yield Row(name="SQLite, read back", value=_read_back(pool, some) * 1e3, unit="CPU ms/step", goal=0.05)
    path = folder / "apart.sqlite"
    with _opened(path) as pool:
        alone = [_apart(np.random.default_rng(seed)) for seed in range(2_048)]
        pool.put(*(record for info, _ in alone for record in (info,)))
        for start in range(0, len(alone), BATCH):
            pool.put(*(step for _, step in alone[start : start + BATCH]))
    yield Row(name="bytes per step that extends no other", value=_bytes(path) / len(alone), unit="bytes", goal=4_096)
    yield from _with_reader(folder / "read.sqlite", 20 if quick else 80)


def _with_reader(path: Path, groups: int) -> Iterator[Row]:
    """Ingest while somebody looks at the pool twice a second, as the dashboard does, against ingest alone."""
    batches = [_groups(range(start, start + groups)) for start in range(0, 6 * groups, groups)]
    with _opened(path) as pool:
        _ingest(pool, batches[0], BATCH)
        alone, watched = [], []
        for turn in range(1, 5):
            busy = turn % 2 == 0
            with _reader(path, busy=busy):
                seconds = _timed(partial(_ingest, pool, batches[turn], BATCH))
            (watched if busy else alone).append(seconds)
    slower = (sum(watched) / sum(alone) - 1) * 100
    yield Row(name="ingest while the pool is watched", value=slower, unit="% slower", goal=10)


@contextmanager
def _reader(path: Path, *, busy: bool) -> Iterator[None]:
    """Another process that reads what the overview of the dashboard shows."""
    code = (
        "import sys, time\nfrom stepwell.pool.store import SQLitePool\n"
        "pool = SQLitePool.open(sys.argv[1], read_only=True)\nprint(flush=True)\n"
        "while True:\n pool.stats(); pool.trajectories(limit=50); pool.updates(); time.sleep(0.5)"
    )
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _postgresql(sizes: Sequence[int]) -> Iterator[Row]:
    with running(durable=True) as server:
        url, count = server.create("growing"), 0
        pool = open_pool(url)
        for size in sizes:
            seconds = _grow(pool, count, size)
            ingested = (size - count) / seconds
            yield _row(f"PostgreSQL, ingest in batches of {BATCH} up to {size:,}", ingested, "steps/s", 20_000)
            count = size
            with psycopg.connect(url) as connection:
                row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
            yield Row(name=f"PostgreSQL, bytes per step at {size:,}", value=row[0] / size if row else 0.0, unit="bytes")
            yield from _at_size(pool, f"PostgreSQL, {size:,} steps", lease_goal=None, listing_goal=None)
        pool.close()


def _row(name: str, value: float, unit: str, goal: float) -> Row:
    return Row(name=name, value=value, unit=unit, goal=goal, better="higher")


_Group = tuple[list[Record], list[Step], list[Record]]


def _grow(pool: Pool, start: int, stop: int) -> float:
    """Append steps until there are `stop`; gives the seconds that their appends took, not their making."""
    seconds = 0.0
    for first in range(start // PER_GROUP, stop // PER_GROUP, 160):
        groups = _groups(range(first, min(first + 160, stop // PER_GROUP)))
        seconds += _timed(partial(_ingest, pool, groups, BATCH))
    return seconds


def _groups(seeds: Sequence[int]) -> list[_Group]:
    return [_group(np.random.default_rng(seed)) for seed in seeds]


def _group(random: np.random.Generator) -> _Group:
    """What is appended before, as and after the steps of one group are taken."""
    group = GroupInfo(task_id="task", size=SIZE)
    members = [TrajectoryInfo(group_id=group.id, task_id="task") for _ in range(SIZE)]
    ends: list[Record] = [Annotation.end(member.id, "terminated") for member in members]
    rewards: list[Record] = [
        Annotation.reward("trajectory", member.id, float(random.integers(2))) for member in members
    ]
    steps = [step for member in members for step in _steps(member.id, random)]
    return [group, *members], steps, ends + rewards


def _steps(trajectory_id: str, random: np.random.Generator) -> Iterator[Step]:
    prompt = _tokens(random, FIRST_PROMPT)
    for index in range(STEPS):
        yield (step := _step(trajectory_id, index, prompt, random))
        prompt = np.concatenate((prompt, step.response_ids, _tokens(random, OBSERVATION)))


def _step(trajectory_id: str, index: int, prompt: np.ndarray, random: np.random.Generator) -> Step:
    return Step(
        trajectory_id=trajectory_id,
        index=index,
        prompt_ids=prompt,
        response_ids=_tokens(random, RESPONSE),
        logprobs=-random.exponential(0.5, RESPONSE).astype(np.float32),
    )


def _apart(random: np.random.Generator) -> tuple[TrajectoryInfo, Step]:
    """A trajectory of one step with a prompt of 1,024 tokens."""
    info = TrajectoryInfo(task_id="task")
    return info, _step(info.id, 0, _tokens(random, 1_024), random)


def _tokens(random: np.random.Generator, count: int) -> np.ndarray:
    return np.minimum(random.zipf(1.3, count), 150_000).astype(np.int32)  # common words are common in text too


def _ingest(pool: Pool, groups: Sequence[_Group], batch: int) -> None:
    """Append steps, waiting for each batch to be on disk before the next; the other records ride along in theirs."""
    pool.append([record for before, _, _ in groups for record in before]).result()
    steps = [step for _, taken, _ in groups for step in taken]
    for start in range(0, len(steps), batch):
        pool.put(*steps[start : start + batch])
    pool.append([record for _, _, after in groups for record in after]).result()


def _read_back(pool: Pool, groups: Sequence[_Group]) -> float:
    """CPU seconds per step."""
    some = groups[:16]
    return _cpu(lambda: [pool.group(before[0].id) for before, _, _ in some]) / (len(some) * PER_GROUP)


def _lease(pool: Pool) -> tuple[float, float]:
    """Seconds to lease steps, and to acknowledge them; the median of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        lease = pool.lease(LeaseSpec(consumer="benchmark", limit=BATCH // PER_GROUP))
        leased = time.perf_counter()
        pool.acknowledge(lease.id)
        times.append((leased - start, time.perf_counter() - leased))
    lease_seconds, acknowledge_seconds = np.median(times, axis=0)
    return float(lease_seconds), float(acknowledge_seconds)


def _median(work: Callable[[], object]) -> float:
    return float(np.median([_timed(work) for _ in range(5)]))


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _bytes(path: Path) -> int:
    """Of the database, with everything moved into it that was written."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


def _resident() -> float:
    """Largest memory of this process so far, KB."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@contextmanager
def _opened(path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(path)
    try:
        yield pool
    finally:
        pool.close()


if __name__ == "__main__":
    main("Pools", measure)
