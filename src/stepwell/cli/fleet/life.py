"""Somebody who plays in another process, from when he is begun until he dies."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from stepwell.cli.fleet.jobs import Job, Told


class Life(Protocol):
    """One way to reach him."""

    @property
    def pid(self) -> int:
        """Of his process; 0 once it is over."""
        ...

    def send(self, job: Job) -> None:
        """Give him a job; lost if it is over."""
        ...

    def told(self) -> AsyncIterator[Told]:
        """All that he tells, until it is over."""
        ...

    async def cause(self) -> str:
        """What it ended by, once it is over."""
        ...

    async def end(self) -> None:
        """End it: what he plays is cancelled."""
        ...


Begin = Callable[[], Awaitable[Life]]
