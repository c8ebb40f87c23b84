"""A run whose processes are killed at random moments, beside the same run undisturbed: does it come out the same?

The lookup task, several seeds. The undisturbed run is one process; the other is several (`mode=local`), of which some
get SIGKILL again and again: the trainer, the server with gateway and engine, a worker. Somebody else calls the
model all the time and keeps what he was told is recorded. Each kill waits for an update that is newer than all before
the last kill, and then for a random part of an update's time, so a run gets on however long it takes to recover.

In the end every update must be there, made of as many groups as it should be, none of them in two; everything
that was acknowledged must be in the pool; and the curve must lie where undisturbed seeds have theirs.
"""

import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

import httpx
import psutil
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.chaos
from report import Row, main

from stepwell.cli.parts import POOL_FILE
from stepwell.cli.serving import free_port
from stepwell.errors import NotFound, StepwellError
from stepwell.pool.base import Pool
from stepwell.pool.store import SQLitePool
from stepwell.types import UpdateInfo

_RECENT: Final = 5
"""Updates whose mean is the reward that a run has come to."""
_LOOK: Final = 0.25
"""Seconds between two looks at a run."""
_LONGEST: Final = 1800.0
"""Seconds after which a run is taken to hang."""
_FAILURES: Final = 5
"""So often in a row the trainer may end by an error of its own before that is taken for a mistake."""
_INTERRUPTED: Final = 130
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["stepwell.cli.train", "stepwell.cli.main"])  # imports take longer than all else


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    seeds: int
    updates: int
    groups: int
    """Per update."""
    warmup: int
    workers: int
    between: int
    """Updates from one kill to the next."""
    kills: Mapping[str, Sequence[Sequence[str]]]
    """By the mode of a disturbed run: what of it is killed at a time, each equally often, in random order."""

    def settings(self, seed: int) -> list[str]:
        """Of the recipe."""
        return [
            f"seed={seed}",
            f"rollout.seed={seed}",
            f"rollout.workers={self.workers}",
            f"warmup.updates={self.warmup}",
            f"trainer.updates={self.updates}",
            f"trainer.groups_per_update={self.groups}",
            "trainer.stop_at_reward=null",
            "trainer.checkpoint_every=2",
        ]


WHOLE: Final = Size(
    seeds=3,
    updates=20,
    groups=16,
    warmup=110,
    workers=2,
    between=3,
    kills={"local": [("serve",), ("worker",), ("train",), ("serve", "worker")]},
)
QUICK: Final = Size(
    seeds=1,
    updates=4,
    groups=4,
    warmup=5,
    workers=1,
    between=1,
    kills={"local": [("serve", "worker"), ("train",)]},
)


@dataclass(frozen=True)
class Course:
    """What a run came to."""

    rewards: Sequence[float]
    """Of each update."""
    versions: Sequence[int]
    trained: Counter[str]
    """Groups that updates were made of, and of how many each."""
    faults: int
    """That `stepwell pool verify` would tell of."""
    seconds: float
    told: int = 0
    """Steps that somebody was told are recorded."""
    lost: int = 0
    """Those of them that the pool does not have."""
    kills: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    """Times that the trainer ended by an error, since others died."""


def measure(quick: bool) -> Sequence[Row]:
    size = QUICK if quick else WHOLE
    seeds = range(1, size.seeds + 1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # who is killed leaks semaphores, and is not to blame
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(console=Console(stderr=True)) as progress,
        ThreadPoolExecutor(2) as both,
    ):
        total = size.seeds * size.updates

        def courses(mode: str) -> list[Course]:
            name = f"disturbed, {mode}" if mode else "undisturbed"
            on_update = partial(progress.advance, progress.add_task(name, total=total))
            folders = [Path(folder) / f"{mode or 'calm'}-{seed}" for seed in seeds]
            if not mode:
                return [_undisturbed(own, size, seed, on_update) for own, seed in zip(folders, seeds, strict=True)]
            return [_disturbed(own, size, mode, seed, on_update) for own, seed in zip(folders, seeds, strict=True)]

        calm, *disturbed = [both.submit(courses, mode) for mode in ("", *size.kills)]
        return list(_rows(calm.result(), [course for one in disturbed for course in one.result()], size))


def _undisturbed(folder: Path, size: Size, seed: int, on_update: Callable[[], None]) -> Course:
    run = _Run(folder)
    run.start("lookup", *size.settings(seed), "--folder", str(folder))
    with closing(run):
        for _ in range(size.updates):
            run.wait_for_update()
            on_update()
        run.wait_for_end()
    return run.course()


def _disturbed(folder: Path, size: Size, mode: str, seed: int, on_update: Callable[[], None]) -> Course:
    chaos, kills = random.Random(seed), list[Sequence[str]]()
    run = _Run(folder)
    run.start("lookup", f"mode={mode}", *size.settings(seed), "--folder", str(folder))
    with closing(run), _Caller(run) as caller:
        for update in range(1, size.updates + 1):
            took = run.wait_for_update()
            on_update()
            if update % size.between == 0 and update < size.updates - 1:  # a whole one is still to come after it
                kills = kills or chaos.sample(size.kills[mode], len(size.kills[mode]))
                time.sleep(chaos.uniform(0, took))
                for part in kills.pop():
                    run.kill(part)
        run.wait_for_end()
    return run.course(caller.told)


class _Run:
    """A run, whoever trains it by now."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder
        self._begun = time.monotonic()
        self._newest = 0
        """Version of the newest update that there ever was."""
        self._kills: Counter[str] = Counter()
        self._failures = self._in_a_row = 0
        self._trainer: ForkServerProcess

    def start(self, *arguments: str) -> None:
        port = free_port("127.0.0.1")  # another each time, as the server of a killed trainer may still have its own
        self.url = f"http://127.0.0.1:{port}"
        log = self._folder.with_suffix(".log")
        self._trainer = _FORKS.Process(target=_train, args=(log, [*arguments, "--port", str(port)]))
        self._trainer.start()

    def wait_for_update(self) -> float:
        """For one that is newer than all before; gives about the seconds that the next will take."""
        while not (new := [update for update in self._updates() if update.policy_version > self._newest]):
            if not self._look_after():
                raise RuntimeError(f"the run ended before its last update:\n{self._said()}")
            time.sleep(_LOOK)
        self._newest, self._in_a_row = new[0].policy_version, 0
        metrics = dict(new[0].metrics)  # players begin within the first, which takes much longer
        return metrics["seconds_learn"] + (metrics["seconds_collect"] if self._newest > 1 else 0.0)

    def wait_for_end(self) -> None:
        while self._look_after():
            time.sleep(_LOOK)

    def kill(self, part: str) -> None:
        """The trainer, or the process of it that serves or one that plays, as soon as there is one."""
        while not (found := list(self._found(part))):
            if not self._look_after():
                return
            time.sleep(_LOOK)
        found[0].send_signal(signal.SIGKILL)
        if part == "train":
            self._trainer.join()
        self._kills[part] += 1

    def _found(self, part: str) -> Iterator[psutil.Process]:
        try:
            trainer = psutil.Process(self._trainer.pid)
            if part == "train" and self._trainer.is_alive():
                yield trainer
            yield from (child for child in trainer.children(recursive=True) if _is(child, part))
        except psutil.NoSuchProcess:  # nobody trains just now
            return

    def course(self, told: Sequence[str] = ()) -> Course:
        with closing(self._pool()) as pool:
            updates = pool.updates("lookup")
            return Course(
                rewards=[dict(update.metrics)["reward_mean"] for update in updates],
                versions=[update.policy_version for update in updates],
                trained=_trained(pool, [update.policy_version for update in updates]),
                faults=len(pool.verify()),
                seconds=time.monotonic() - self._begun,
                told=len(told),
                lost=sum(not _has(pool, step) for step in told),
                kills=self._kills,
                failures=self._failures,
            )

    def close(self) -> None:
        self._trainer.kill()
        self._trainer.join()

    def _look_after(self) -> bool:
        """Whether it goes on: somebody must train it, until it is done."""
        if time.monotonic() - self._begun > _LONGEST:
            raise TimeoutError(f"a run did not end within {_LONGEST:g} s; its trainer said last:\n{self._said()}")
        if self._trainer.is_alive():
            return True
        if self._trainer.exitcode == 0:
            return False
        if self._trainer.exitcode == _INTERRUPTED:
            raise RuntimeError("the trainer was interrupted, as by Ctrl-C")
        if self._trainer.exitcode != -signal.SIGKILL:
            self._failures += 1
            self._in_a_row += 1
        if self._in_a_row > _FAILURES:
            raise RuntimeError(f"the trainer ends again and again:\n{self._said()}")
        self.start("--resume", str(self._folder))
        return True

    def _updates(self) -> list[UpdateInfo]:
        try:
            with closing(self._pool()) as pool:
                return pool.updates("lookup")
        except StepwellError:  # there is no pool yet
            return []

    def _pool(self) -> SQLitePool:
        return SQLitePool.open(self._folder / POOL_FILE, read_only=True)

    def _said(self) -> str:
        return self._folder.with_suffix(".log").read_text(errors="replace")[-2000:]


class _Caller(threading.Thread):
    """Somebody beside the run who calls the model it serves; a context manager."""

    def __init__(self, run: _Run) -> None:
        super().__init__(daemon=True)
        self.told: list[str] = []
        """Steps whose answers came, to the end."""
        self._run = run
        self._enough = threading.Event()

    def __enter__(self) -> "_Caller":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join()

    def run(self) -> None:
        body = {"model": "lookup", "max_tokens": 6, "messages": [{"role": "user", "content": "find ab"}]}
        with httpx.Client(timeout=20) as client:
            while not self._enough.wait(0.2):
                with suppress(httpx.TransportError):  # nobody serves: who is told nothing loses nothing
                    answer = client.post(f"{self._run.url}/v1/chat/completions", json=body)
                    if answer.status_code == httpx.codes.OK:
                        self.told.append(answer.headers["x-stepwell-step"])


def _train(log: Path, arguments: Sequence[str]) -> None:
    """What `stepwell train` does, in a process that has imported all of it."""
    with log.open("ab") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    sys.argv = ["stepwell", "train", *arguments]
    from stepwell.cli.main import main as command  # noqa: PLC0415 - where it is loaded already

    command()


def _is(process: psutil.Process, part: str) -> bool:
    try:
        return part in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _trained(pool: Pool, versions: Sequence[int]) -> Counter[str]:
    groups = Counter[str]()
    for version in versions:
        groups.update({step.group_id for step in pool.credit("lookup", version)})
    return groups


def _has(pool: Pool, step: str) -> bool:
    try:
        pool.step(step)
    except NotFound:
        return False
    return True


def _rows(calm: Sequence[Course], disturbed: Sequence[Course], size: Size) -> Iterator[Row]:
    both, expected = [*calm, *disturbed], list(range(1, size.updates + 1))
    lacking = sum(list(course.versions) != expected for course in both)
    yield Row(name="runs that lack an update", value=lacking, unit="", goal=0)
    twice = sum(times > 1 for course in both for times in course.trained.values())
    yield Row(name="groups trained on twice", value=twice, unit="", goal=0)
    missing = sum(abs(size.updates * size.groups - course.trained.total()) for course in both)
    yield Row(name="groups that updates lack", value=missing, unit="", goal=0)
    told = sum(course.told for course in disturbed)
    yield Row(name="steps acknowledged to somebody else", value=told, unit="", goal=1, better="higher")
    yield Row(name="of them lost", value=sum(course.lost for course in disturbed), unit="", goal=0)
    yield Row(name="faults of the pools", value=sum(course.faults for course in both), unit="", goal=0)
    of_all = {part for moments in size.kills.values() for parts in moments for part in parts}
    for part in sorted(of_all):
        kills = sum(course.kills[part] for course in disturbed)
        yield Row(name=f"kills: {part}", value=kills, unit="", goal=size.seeds, better="higher")
    failures = sum(course.failures for course in disturbed)
    yield Row(name="errors of the trainer, resumed", value=failures, unit="")
    for name, some in (("undisturbed", calm), ("disturbed", disturbed)):
        seconds = statistics.mean(course.seconds for course in some)
        yield Row(name=f"{name}: time of a run", value=seconds, unit="s")
    yield from _distance(
        "last updates", [c.rewards[-_RECENT:] for c in calm], [c.rewards[-_RECENT:] for c in disturbed]
    )
    yield from _distance("curve", [c.rewards for c in calm], [c.rewards for c in disturbed])


def _distance(what: str, calm: Sequence[Sequence[float]], disturbed: Sequence[Sequence[float]]) -> Iterator[Row]:
    """Of the means over seeds; it is to be at most the range of the undisturbed seeds, of which one has none."""
    here, there = ([statistics.mean(rewards) for rewards in some] for some in (calm, disturbed))
    for name, means in (("undisturbed", here), ("disturbed", there)):
        yield Row(name=f"{name}: reward of the {what}, lowest seed", value=min(means), unit="")
        yield Row(name=f"{name}: reward of the {what}, highest seed", value=max(means), unit="")
    spread = max(here) - min(here) if len(here) > 1 else None
    apart = abs(statistics.mean(here) - statistics.mean(there))
    yield Row(name=f"{what}: means apart (goal: range undisturbed)", value=apart, unit="", goal=spread)


if __name__ == "__main__":
    main("Chaos", measure)
