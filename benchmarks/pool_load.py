"""What the benchmarks of pools store and how: made-up steps of 1,152 tokens on average, appended in batches.

Trajectories have 8 steps, each prompt the whole conversation so far and 128 new tokens, and 128 tokens are sampled; 8
trajectories make a group. What is timed is the pool's work, not the making of the steps.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from resource import getpagesize

import numpy as np
import psycopg

from stepwell.curation.selection import Selection
from stepwell.pool.base import Pool
from stepwell.pool.lease import LeaseSpec
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo

STEPS, RESPONSE, OBSERVATION = 8, 128, 128
FIRST_PROMPT = 128
SIZE = 8  # trajectories per group
PER_GROUP = SIZE * STEPS
BATCH = 256
AT_ONCE = 160  # groups that are made, then appended

Made = tuple[list[Record], list[Step], list[Record]]


def grow(pool: Pool, start: int, stop: int, progress: Callable[[int], None] = lambda _: None) -> float:
    """Append steps until there are `stop`; gives the seconds that their appends took, not their making.

    `progress` hears of the number of steps that were appended since it was last called.
    """
    seconds = 0.0
    for first in range(start // PER_GROUP, stop // PER_GROUP, AT_ONCE):
        made = groups(range(first, min(first + AT_ONCE, stop // PER_GROUP)))
        seconds += timed(partial(ingest, pool, made, BATCH))
        progress(len(made) * PER_GROUP)
        del made  # or it would still be there while the next are made
    return seconds


def groups(seeds: Sequence[int]) -> list[Made]:
    return [_group(np.random.default_rng(seed)) for seed in seeds]


def _group(random: np.random.Generator) -> Made:
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


def apart(random: np.random.Generator) -> tuple[TrajectoryInfo, Step]:
    """A trajectory of one step with a prompt of 1,024 tokens."""
    info = TrajectoryInfo(task_id="task")
    return info, _step(info.id, 0, _tokens(random, 1_024), random)


def _tokens(random: np.random.Generator, count: int) -> np.ndarray:
    return np.minimum(random.zipf(1.3, count), 150_000).astype(np.int32)  # common words are common in text too


def ingest(pool: Pool, made: Sequence[Made], batch: int) -> None:
    """Append steps, waiting for each batch to be on disk before the next; the other records ride along in theirs."""
    pool.append([record for before, _, _ in made for record in before]).result()
    steps = [step for _, taken, _ in made for step in taken]
    for start in range(0, len(steps), batch):
        pool.put(*steps[start : start + batch])
    pool.append([record for _, _, after in made for record in after]).result()


def lease_and_acknowledge(pool: Pool) -> tuple[float, float]:
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


def median(work: Callable[[], object]) -> float:
    return float(np.median([timed(work) for _ in range(5)]))


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def sqlite_bytes(path: Path) -> int:
    """Of the database, with everything moved into it that was written."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


def postgres_bytes(url: str) -> int:
    """Of the database, indexes included."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return row[0] if row else 0


def list_some(pool: Pool) -> object:
    """The newest 200 trajectories that were rewarded."""
    return pool.trajectories(Selection(min_reward=0.5), limit=200)


def resident() -> float:
    """Memory of this process now, in KB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize() / 1024
