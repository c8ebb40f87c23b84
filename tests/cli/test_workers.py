"""A crew of processes as its run sees it, with lives that tell, and die, when a test says so."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepwell.cli.fleet import workers
from stepwell.cli.fleet.jobs import Begun, Done, Failed, Groups, Job, Opened, Told
from stepwell.cli.fleet.workers import Workers
from stepwell.errors import EnvironmentFailed, ForkRefused
from stepwell.pool.store import SQLitePool
from stepwell.types import GroupInfo


class Scripted:
    """A life that is told what to tell."""

    def __init__(self) -> None:
        self.jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._said: asyncio.Queue[Told | Exception | None] = asyncio.Queue()
        self.pid = 1

    def send(self, job: Job) -> None:
        self.jobs.put_nowait(job)

    def say(self, *said: Told | Exception | None) -> None:
        """None: it dies."""
        for one in said:
            self._said.put_nowait(one)

    async def told(self) -> AsyncIterator[Told]:
        while (one := await self._said.get()) is not None:
            if isinstance(one, Exception):
                raise one
            yield one

    async def cause(self) -> str:
        return "a script"

    async def end(self) -> None:
        self.say(None)


class Stage:
    """Begins lives, and hands them to the test."""

    def __init__(self, count: int = 10_000) -> None:
        self.lives: asyncio.Queue[Scripted] = asyncio.Queue()
        self._left = count

    async def begin(self) -> Scripted:
        if not self._left:
            raise OSError("no more processes")
        self._left -= 1
        life = Scripted()
        self.lives.put_nowait(life)
        return life


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep
    monkeypatch.setattr(workers.asyncio, "sleep", lambda _: sleep(0))


@pytest.fixture
def pool(tmp_path: Path):
    made = SQLitePool.open(tmp_path / "pool.sqlite")
    yield made
    made.close()


async def test_one_that_dies_while_it_plays_is_replaced_and_its_job_begins_again(pool: SQLitePool) -> None:
    stage, begun = Stage(), []
    pool.put(GroupInfo(id="lost", task_id="t", size=2))
    async with Workers(stage.begin, 1, pool) as crew:
        made = asyncio.create_task(crew.groups(iter(["t"]), 1, 2, lambda: begun.append(1)))
        first = await stage.lives.get()
        job = await first.jobs.get()
        first.say(Opened(job.job, "lost"), Begun(job.job), None)
        second = await stage.lives.get()
        assert await second.jobs.get() == job
        second.say(Begun(job.job), Done(job.job, 1))
        assert await made == 1
    assert begun == [1]
    assert dict(pool.stats().groups_dropped) == {"the process that played it died": 1}


async def test_all_play_once_each_has_begun_whoever_begins_twice(pool: SQLitePool) -> None:
    stage, begun = Stage(), []
    async with Workers(stage.begin, 1, pool) as crew:
        made = asyncio.create_task(crew.groups(iter(["a", "a"]), 2, 2, lambda: begun.append(1)))
        life = await stage.lives.get()
        jobs = [await life.jobs.get(), await life.jobs.get()]
        life.say(Begun(jobs[0].job), Begun(jobs[0].job))
        await asyncio.sleep(0)
        assert begun == []
        life.say(Begun(jobs[1].job), *(Done(job.job, 1) for job in jobs))
        assert await made == 2
    assert begun == [1]


async def test_one_that_keeps_dying_ends_the_run_with_a_reason_and_later_jobs_at_once(pool: SQLitePool) -> None:
    stage = Stage()
    async with Workers(stage.begin, 1, pool) as crew:
        for _ in range(6):  # with nothing to do, as while the run learns
            (await stage.lives.get()).say(None)
        for _ in range(20):
            await asyncio.sleep(0)
        with pytest.raises(EnvironmentFailed, match="a worker died 6 times, the last time with a script"):
            await crew.groups(iter(["t"]), 1, 2, lambda: None)


@pytest.mark.parametrize("said", [ValueError("no JSON"), None])
async def test_one_that_cannot_be_followed_ends_the_run_instead_of_having_it_wait(pool: SQLitePool, said) -> None:
    """It says what nobody understands; or no other can be begun in its place."""
    stage = Stage(1)
    async with Workers(stage.begin, 1, pool) as crew:
        made = asyncio.create_task(crew.groups(iter(["t"]), 1, 2, lambda: None))
        life = await stage.lives.get()
        await life.jobs.get()
        life.say(said)
        with pytest.raises(EnvironmentFailed, match="could not be followed"):
            await made


async def test_a_job_that_failed_raises_its_own_error(pool: SQLitePool) -> None:
    stage = Stage()
    async with Workers(stage.begin, 1, pool) as crew:
        made = asyncio.create_task(crew.groups(iter(["t"]), 1, 2, lambda: None))
        life = await stage.lives.get()
        job = await life.jobs.get()
        assert isinstance(job, Groups)
        life.say(Failed(job.job, "ForkRefused", "it cannot"))
        with pytest.raises(ForkRefused, match="it cannot"):
            await made
