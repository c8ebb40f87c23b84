"""One who plays in this process, as many trajectories at once as the recipe says."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

from stepwell.algorithms.base import Siblings
from stepwell.cli.collecting import Workplace, collecting
from stepwell.errors import InvalidRequest
from stepwell.rollout.group import Collector, OnEnding
from stepwell.rollout.run import Ending, Log
from stepwell.rollout.siblings import SiblingCollector
from stepwell.rollout.trunks import Memory


@dataclass(slots=True, kw_only=True)
class Hand:
    """A crew of one; an async context manager, as agents keep connections."""

    place: Workplace
    plan: Siblings | None
    """What the run's algorithm wants of siblings."""
    on_ending: OnEnding = lambda _: None
    log: Log | None = None
    """Where to record; None: in the pool."""
    _version: int = 0
    _collector: Collector = field(init=False)
    _turns: SiblingCollector | None = None
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        collector = collecting(self.place, on_ending=self.on_ending, log=self.log)
        self._collector = await self._open.enter_async_context(collector)
        if self.plan is not None:
            memory = Memory(self.place.pool, lambda: self._version)
            self._turns = SiblingCollector(self._collector, self.plan, memory)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def groups(self, tasks: Iterator[str], count: int, size: int, begun: Callable[[], None]) -> int:
        """See `Crew`."""
        return await self._collector.collect_groups(tasks, count, size, begun)

    async def siblings(self, tasks: Iterator[str], count: int, held: int, version: int) -> int:
        """See `Crew`."""
        if self._turns is None:
            raise InvalidRequest("siblings were asked for by an algorithm that wants none")
        self._version = version
        return await self._turns.collect(tasks, count, held)

    async def trials(self, tasks: Sequence[str], temperature: float) -> list[Ending]:
        """See `Crew`."""
        own = collecting(self.place, temperature=temperature, on_ending=self.on_ending, log=self.log)
        async with own as collector:
            return await collector.evaluate(tasks)
