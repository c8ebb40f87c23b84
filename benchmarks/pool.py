"""How fast the embedded pool takes steps in, reads them back and leases them, and how many bytes a step takes.

A step has 1,152 tokens on average: trajectories of 8 steps, each prompt the whole conversation so far and 128 new
tokens.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.pool
from report import Row, main

from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo

STEPS, RESPONSE, OBSERVATION = 8, 128, 128
FIRST_PROMPT = 128
SIZE = 8  # trajectories per group


def measure(quick: bool) -> Sequence[Row]:
    count = 10_240 if quick else 40_960
    groups = [_group(np.random.default_rng(seed)) for seed in range(count // (SIZE * STEPS))]
    with _pool() as (path, pool):
        batched = count / _timed(lambda: _ingest(pool, groups, 256))
        lease, acknowledged = _lease(pool)
        read = _read_back(pool, groups)
        pool.close()
        size = path.stat().st_size / count
    with _pool() as (_, pool):
        some = groups[: max(1, len(groups) // 40)]
        single = len(some) * SIZE * STEPS / _timed(lambda: _ingest(pool, some, 1))
    return [
        Row(name="durable ingest, batches of 256", value=batched, unit="steps/s", goal=3_000, better="higher"),
        Row(name="durable ingest, one at a time", value=single, unit="steps/s", goal=100, better="higher"),
        Row(name="read back", value=read * 1e3, unit="CPU ms/step", goal=1.0),
        Row(name="size", value=size, unit="bytes/step", goal=4_096),
        Row(name=f"lease of 256 steps among {count:,}", value=lease * 1e3, unit="ms", goal=250),
        Row(name="acknowledge", value=acknowledged * 1e3, unit="ms"),
    ]


def _group(random: np.random.Generator) -> tuple[list[Record], list[Step], list[Record]]:
    """What is appended before, as and after the steps of one group are taken."""
    group = GroupInfo(task_id="task", size=SIZE)
    members = [TrajectoryInfo(group_id=group.id, task_id="task") for _ in range(SIZE)]
    ends: list[Record] = [Annotation.end(member.id, "terminated") for member in members]
    rewards = [Annotation.reward("trajectory", member.id, float(random.integers(2))) for member in members]
    steps = [step for member in members for step in _steps(member.id, random)]
    return [group, *members], steps, ends + rewards


def _steps(trajectory_id: str, random: np.random.Generator) -> Iterator[Step]:
    prompt = _tokens(random, FIRST_PROMPT)
    for index in range(STEPS):
        response = _tokens(random, RESPONSE)
        logprobs = -random.exponential(0.5, RESPONSE).astype(np.float32)
        yield Step(
            trajectory_id=trajectory_id, index=index, prompt_ids=prompt, response_ids=response, logprobs=logprobs
        )
        prompt = np.concatenate((prompt, response, _tokens(random, OBSERVATION)))


def _tokens(random: np.random.Generator, count: int) -> np.ndarray:
    return np.minimum(random.zipf(1.3, count), 150_000).astype(np.int32)  # common words are common in text too


def _ingest(pool: SQLitePool, groups: Sequence[tuple[list[Record], list[Step], list[Record]]], batch: int) -> None:
    """Append steps, waiting for each batch to be on disk before the next; the other records ride along in theirs."""
    pool.append([record for before, _, _ in groups for record in before]).result()
    steps = [step for _, taken, _ in groups for step in taken]
    for start in range(0, len(steps), batch):
        pool.put(*steps[start : start + batch])
    pool.append([record for _, _, after in groups for record in after]).result()


def _read_back(pool: SQLitePool, groups: Sequence[tuple[list[Record], list[Step], list[Record]]]) -> float:
    """CPU seconds per step."""
    some = groups[:16]
    start = time.process_time()
    for before, _, _ in some:
        pool.group(before[0].id)
    return (time.process_time() - start) / (len(some) * SIZE * STEPS)


def _lease(pool: SQLitePool) -> tuple[float, float]:
    """Seconds to lease 256 steps, and to acknowledge them; the median of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        lease = pool.lease("benchmark", limit=256 // (SIZE * STEPS))
        leased = time.perf_counter()
        pool.acknowledge(lease.id)
        times.append((leased - start, time.perf_counter() - leased))
    lease_seconds, acknowledge_seconds = np.median(times, axis=0)
    return float(lease_seconds), float(acknowledge_seconds)


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def _pool() -> Iterator[tuple[Path, SQLitePool]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.sqlite"
        pool = SQLitePool.open(path)
        try:
            yield path, pool
        finally:
            pool.close()


if __name__ == "__main__":
    main("The embedded pool", measure)
