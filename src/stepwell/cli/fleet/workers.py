"""Players in processes of their own. One that dies is begun again, and its jobs are done anew."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from stepwell import errors
from stepwell.cli.fleet.jobs import Begun, Done, Ended, Failed, Groups, Job, Opened, SiblingGroups, Told, Trials
from stepwell.cli.fleet.life import Begin, Life
from stepwell.errors import EnvironmentFailed, StepwellError
from stepwell.pool.base import Pool
from stepwell.rollout.group import all_of
from stepwell.rollout.run import Ending

_log: Final = logging.getLogger(__name__)
_DEATHS: Final = 5
"""So often one may die in a row, without having finished a job, before the run is given up."""
_SIBLING_SETS: Final = 5
"""Sets of trunks for which tasks are sent along: one is played ahead, and siblings that are all alike need more."""


@dataclass(slots=True, eq=False)
class _Order:
    """A job under way."""

    job: Job
    begun: Callable[[], None]
    done: "asyncio.Future[int]"
    opened: list[str] = field(default_factory=list)
    """Groups that are in the pool for it."""
    endings: list[Ending] = field(default_factory=list)


class Workers:
    """A crew of processes; an async context manager."""

    def __init__(
        self,
        begin: Begin,
        count: int,
        pool: Pool,
        trunks: int = 1,
        on_ending: Callable[[Ending], None] = lambda _: None,
    ) -> None:
        """`count` lives at a time, each begun by `begin`; `trunks` of each task, for siblings."""
        self._pool = pool
        self._trunks = trunks
        self._on_ending = on_ending
        self._numbers = itertools.count(1)
        self._workers = [_Worker(begin, self) for _ in range(count)]

    async def __aenter__(self) -> Self:
        try:
            for worker in self._workers:
                await worker.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    @property
    def processes(self) -> list[int]:
        """Process ids of those that live."""
        return [worker.pid for worker in self._workers if worker.pid]

    async def groups(self, tasks: Iterator[str], count: int, size: int, begun: Callable[[], None]) -> int:
        """See `Crew`; each group is played by one worker."""
        chosen = list(itertools.islice(tasks, count))
        if len(chosen) < count:
            raise errors.InvalidRequest(f"{count} tasks were asked for, but there are only {len(chosen)}")
        jobs = [Groups(next(self._numbers), [task], size) for task in chosen]
        waiting = {job.job for job in jobs}

        def one_begun(number: int) -> None:  # once more where its worker died
            if number in waiting:
                waiting.discard(number)
                if not waiting:
                    begun()

        orders = await all_of([self._done(job, partial(one_begun, job.job)) for job in jobs])
        return sum(order.done.result() for order in orders)

    async def siblings(self, tasks: Iterator[str], count: int, held: int, version: int) -> int:
        """See `Crew`; one worker keeps the states, so it plays all of them."""
        enough = _SIBLING_SETS * max(count // self._trunks, 1)
        chosen = list(itertools.islice(tasks, enough))
        job = SiblingGroups(next(self._numbers), chosen, count, held, version)
        return (await self._done(job, lambda: None, self._workers[0])).done.result()

    async def trials(self, tasks: Sequence[str], temperature: float) -> list[Ending]:
        """See `Crew`."""
        share = -(-len(tasks) // len(self._workers)) or 1
        parts = [tasks[start : start + share] for start in range(0, len(tasks), share)]
        jobs = [Trials(next(self._numbers), part, temperature) for part in parts]
        orders = await all_of([self._done(job, lambda: None) for job in jobs])
        by_task = {ending.task_id: ending for order in orders for ending in order.endings}
        return [by_task[task] for task in tasks]

    async def _done(self, job: Job, begun: Callable[[], None], worker: "_Worker | None" = None) -> _Order:
        order = _Order(job, begun, asyncio.get_running_loop().create_future())
        (worker or min(self._workers, key=lambda one: len(one.orders))).give(order)
        await order.done
        return order

    def told(self, order: _Order, told: Told) -> None:
        """What became of a job."""
        match told:
            case Opened():
                order.opened.append(told.group_id)
            case Begun():
                order.begun()
            case Ended():
                order.endings.append(told.ending)
                self._on_ending(told.ending)
            case Done() if not order.done.done():
                order.done.set_result(told.made)
            case Failed() if not order.done.done():
                kind = getattr(errors, told.kind, EnvironmentFailed)
                order.done.set_exception(kind(told.why))

    async def forget(self, orders: Sequence[_Order]) -> None:
        """Drop the groups of jobs whose worker died: nobody will complete them."""
        for order in orders:
            for group_id in order.opened:
                with contextlib.suppress(StepwellError):  # it was complete
                    await asyncio.to_thread(self._pool.drop_group, group_id, "the process that played it died")
            order.opened.clear()
            order.endings.clear()


class _Worker:
    """One life after the other."""

    def __init__(self, begin: Begin, crew: Workers) -> None:
        self._begin = begin
        self._crew = crew
        self.orders: dict[int, _Order] = {}
        """By the number of their job."""
        self._life: Life | None = None
        self._guard: asyncio.Task[None] | None = None
        self._deaths = 0
        self._lost = ""
        """Why nobody works here any more."""

    @property
    def pid(self) -> int:
        return self._life.pid if self._life is not None else 0

    async def start(self) -> None:
        self._life = await self._begin()
        self._guard = asyncio.create_task(self._live(self._life))

    async def stop(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            await asyncio.gather(self._guard, return_exceptions=True)
        if self._life is not None:
            await self._life.end()

    def give(self, order: _Order) -> None:
        if self._lost:
            order.done.set_exception(EnvironmentFailed(self._lost))
            return
        self.orders[order.job.job] = order
        if self._life is not None:
            self._life.send(order.job)

    async def _live(self, life: Life) -> None:
        try:
            await self._lives(life)
        except StepwellError as error:  # there cannot be one
            self._give_up(str(error))
        except Exception as error:  # nobody else would hear of it, and the run would wait for ever
            _log.exception("a worker could not be followed")
            self._give_up(f"a worker could not be followed: {error!r}")

    async def _lives(self, life: Life) -> None:
        while True:
            async for told in life.told():
                self._listen(told)
            self._deaths += 1
            cause = await life.cause()
            if self._deaths > _DEATHS:
                died = f"a worker died {self._deaths} times, the last time with {cause}"
                self._give_up(f"{died}; its error is in the terminal above")
                return
            left = list(self.orders.values())
            _log.warning("a worker died (%s); %s jobs are done anew", cause, len(left))
            await self._crew.forget(left)
            await asyncio.sleep(0.2 * 2**self._deaths)
            self._life = life = await self._begin()
            for order in list(self.orders.values()):
                life.send(order.job)

    def _listen(self, told: Told) -> None:
        order = self.orders.get(told.job)
        if order is None:
            return
        if isinstance(told, Done | Failed):
            del self.orders[told.job]
            self._deaths = 0
        self._crew.told(order, told)

    def _give_up(self, why: str) -> None:
        self._lost = why
        for order in self.orders.values():
            if not order.done.done():
                order.done.set_exception(EnvironmentFailed(why))
        self.orders.clear()
