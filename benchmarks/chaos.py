"""A run whose parts are killed at random moments, beside the same run undisturbed: does it come out the same?

The lookup task in several processes (`mode=local`), several seeds. In a disturbed run, every few seconds one process
gets SIGKILL: a worker, the server with gateway and engine, or the trainer itself, which is then started again with
`--resume`. Both must make every update once, train on nothing twice, and end with rewards of the same spread.
"""

import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.chaos
from report import Row, main

from stepwell.cli.parts import POOL_FILE
from stepwell.pool.store import SQLitePool

SEEDS, UPDATES, WARMUP = 4, 16, 110
_RECENT: Final = 4
_PAUSE: Final = (2.0, 7.0)  # seconds between two kills
_PARTS: Final = ("worker", "serve", "train")
_LONGEST: Final = 900.0  # seconds


@dataclass(frozen=True)
class Course:
    """What a run came to."""

    reward: float
    """Mean of its last updates."""
    versions: Sequence[int]
    trained_twice: int
    seconds: float
    kills: Counter[str]


def measure(quick: bool) -> Sequence[Row]:
    seeds, updates, warmup = (1, 4, 30) if quick else (SEEDS, UPDATES, WARMUP)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(seed, disturbed) for seed in range(1, seeds + 1) for disturbed in (False, True)]
        courses: dict[bool, list[Course]] = {False: [], True: []}
        for seed, disturbed in track(jobs, "Measuring", console=Console(stderr=True)):
            own = Path(folder) / f"{seed}-{disturbed}"
            settings = _settings(seed, updates, warmup)
            courses[disturbed].append(_course(own, settings, random.Random(seed) if disturbed else None))
        return list(_rows(courses[False], courses[True], updates))


def _settings(seed: int, updates: int, warmup: int) -> list[str]:
    return [
        "mode=local",
        f"seed={seed}",
        f"rollout.seed={seed}",
        f"trainer.updates={updates}",
        f"warmup.updates={warmup}",
        "trainer.stop_at_reward=null",
        "rollout.workers=2",
        "evaluation.tasks=1",
    ]


def _course(folder: Path, settings: Sequence[str], chaos: random.Random | None) -> Course:
    start, kills = time.monotonic(), Counter[str]()
    process = _started("lookup", *settings, "--folder", str(folder))
    while process.poll() is None or process.returncode != 0:
        if process.poll() is not None:
            process = _started("--resume", str(folder))
        if time.monotonic() - start > _LONGEST:
            process.kill()
            raise TimeoutError(f"the run in {folder} did not end within {_LONGEST:g} s")
        if chaos is None:
            process.wait()
            continue
        try:
            process.wait(chaos.uniform(*_PAUSE))
        except subprocess.TimeoutExpired:
            if (folder / "checkpoints").exists():  # a run without one begins anew, which is no resumption
                kills.update(_kill(process, chaos.choice(_PARTS)))
    with closing(SQLitePool.open(folder / POOL_FILE, read_only=True)) as pool:
        updates = pool.updates("lookup")
    rewards = [dict(update.metrics)["reward_mean"] for update in updates]
    return Course(
        reward=statistics.mean(rewards[-_RECENT:]),
        versions=[update.policy_version for update in updates],
        trained_twice=_trained_twice(folder / POOL_FILE),
        seconds=time.monotonic() - start,
        kills=kills,
    )


def _started(*arguments: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "stepwell", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def _kill(trainer: "subprocess.Popen[bytes]", part: str) -> Iterator[str]:
    """Kill the trainer, or one process of it that plays or serves; yields what was killed, if there was such a one."""
    if part == "train":
        trainer.kill()
        trainer.wait()
        yield part
        return
    for child in psutil.Process(trainer.pid).children(recursive=True):
        try:
            if part in child.cmdline():
                child.send_signal(signal.SIGKILL)
                yield part
                return
        except psutil.NoSuchProcess:
            continue


def _trained_twice(pool: Path) -> int:
    with closing(sqlite3.connect(pool)) as database:
        (count,) = database.execute(
            "SELECT count(*) FROM (SELECT unit_cursor FROM deliveries JOIN leases ON leases.id = deliveries.lease_id "
            "WHERE leases.state = 'acknowledged' GROUP BY unit_cursor HAVING count(*) > 1)"
        ).fetchone()
    return int(count)


def _rows(calm: Sequence[Course], disturbed: Sequence[Course], updates: int) -> Iterator[Row]:
    expected = list(range(1, updates + 1))
    both = [*calm, *disturbed]
    yield Row(name="runs that lack an update, or have one twice", value=_count(both, expected), unit="", goal=0)
    yield Row(name="groups trained on twice", value=sum(course.trained_twice for course in both), unit="", goal=0)
    kills = sum((course.kills for course in disturbed), Counter[str]())
    for part in _PARTS:
        yield Row(name=f"kills: {part}", value=kills[part], unit="")
    for name, courses in (("undisturbed", calm), ("disturbed", disturbed)):
        rewards = [course.reward for course in courses]
        yield Row(name=f"{name}: reward of the last updates, mean over seeds", value=statistics.mean(rewards), unit="")
        yield Row(name=f"{name}: lowest", value=min(rewards), unit="")
        yield Row(name=f"{name}: highest", value=max(rewards), unit="")
        seconds = statistics.mean(course.seconds for course in courses)
        yield Row(name=f"{name}: time of a run", value=seconds, unit="s")
    apart = abs(statistics.mean(c.reward for c in disturbed) - statistics.mean(c.reward for c in calm))
    spread = max(c.reward for c in calm) - min(c.reward for c in calm) if len(calm) > 1 else None
    yield Row(name="distance of the means (goal: the undisturbed runs' range)", value=apart, unit="", goal=spread)


def _count(courses: Sequence[Course], expected: Sequence[int]) -> int:
    return sum(list(course.versions) != list(expected) for course in courses)


if __name__ == "__main__":
    main("Chaos", measure)
