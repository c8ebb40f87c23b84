"""One who plays for a run that trains elsewhere: does its jobs, and tells what becomes of them, whichever way."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Final

from stepwell.cli.collecting import Workplace
from stepwell.cli.fleet.crew import Crew
from stepwell.cli.fleet.hand import Hand
from stepwell.cli.fleet.jobs import Begun, Done, Ended, Failed, Groups, Job, Opened, Told, Trials
from stepwell.cli.parts import build_tasks, open_pool
from stepwell.cli.playing import PlayConfig, build_algorithm
from stepwell.errors import StepwellError
from stepwell.pool.base import Pool, Receipt
from stepwell.types import GroupInfo, Record

Tell = Callable[[Told], None]
_job: Final[ContextVar[int]] = ContextVar("job")
"""For which a trajectory is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """What somebody who plays elsewhere has to know. It can be pickled."""

    recipe: PlayConfig
    url: str
    """The gateway's, without `/v1`."""
    model: str
    """Its name there."""
    key: str = "unused"
    """Of the gateway."""
    pool: str
    """A file that is there, or a URL."""


@asynccontextmanager
async def taken(posting: Posting, tell: Tell) -> AsyncIterator["Post"]:
    """Somebody at that post; at the end, what still plays is cancelled."""
    recipe = posting.recipe
    with open_pool(posting.pool) as pool:
        place = Workplace(
            recipe=recipe,
            tasks=build_tasks(recipe.environment),
            url=posting.url,
            model=posting.model,
            key=posting.key,
            pool=pool,
        )
        hand = Hand(
            place=place,
            plan=build_algorithm(recipe).siblings,
            on_ending=lambda ending: tell(Ended(_job.get(), ending)),
            log=_Telling(pool, tell),
        )
        async with hand:
            post = Post(hand, tell)
            try:
                yield post
            finally:
                await post.leave()


class Post:
    """Does any number of jobs at once."""

    def __init__(self, crew: Crew, tell: Tell) -> None:
        """`crew` does them; `tell` may be called in any thread."""
        self._crew = crew
        self._tell = tell
        self._under_way: set[asyncio.Task[None]] = set()

    def take(self, job: Job) -> None:
        """Begin a job. What goes wrong is told, not raised."""
        task = asyncio.create_task(self._do(job))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def leave(self) -> None:
        """Give up what is under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _do(self, job: Job) -> None:
        _job.set(job.job)
        try:
            made = await self._made(job)
        except StepwellError as error:
            self._tell(Failed(job.job, type(error).__name__, str(error)))
        except (Exception, SystemExit) as error:  # of an environment, say: the run must hear of it
            self._tell(Failed(job.job, "EnvironmentFailed", f"{type(error).__name__}: {error}"))
        else:
            self._tell(Done(job.job, made))

    async def _made(self, job: Job) -> int:
        if isinstance(job, Groups):
            begun = partial(self._tell, Begun(job.job))
            return await self._crew.groups(iter(job.tasks), len(job.tasks), job.size, begun)
        if isinstance(job, Trials):
            await self._crew.trials(job.tasks, job.temperature)
            return 0
        return await self._crew.siblings(iter(job.tasks), job.count, job.held, job.version)


@dataclass(frozen=True, slots=True)
class _Telling:
    """A pool that tells which groups are opened in it."""

    pool: Pool
    tell: Tell

    def append(self, records: Sequence[Record]) -> "Future[list[Receipt]]":
        for record in records:
            if isinstance(record, GroupInfo):
                self.tell(Opened(_job.get(), record.id))
        return self.pool.append(records)

    def drop_group(self, group_id: str, reason: str) -> None:
        self.pool.drop_group(group_id, reason)
