"""Whether new work may begin: producers wait while a consumer has more than it can take, instead of making what is too
old by the time that it is trained on. What has begun goes on, however long it takes."""

import asyncio
import time
from typing import Final

from pydantic import Field

from stepwell.config import Config
from stepwell.curation.selection import Selection
from stepwell.errors import RateLimited
from stepwell.pool.base import Pool
from stepwell.pool.lease import LeaseSpec, Unit

_FRESH: Final = 1.0  # seconds for which a count is believed
_RETRY: Final = 5.0  # seconds after which a producer is told to ask again


class AdmissionConfig(Config):
    """When the gateway takes no new trajectories, groups and sessions: they get 429 with Retry-After."""

    consumer: str = Field(min_length=1, max_length=256)
    """Whose backlog counts: a training run's is its name."""
    max_backlog: int = Field(ge=1)
    """So many ready units that it neither has nor had are enough. About: a count is up to a second old."""
    unit: Unit = "group"
    """What it leases."""
    channel: str | None = None
    """Only what was collected for this channel; None: all."""


class Admission:
    """The door for what is new. Used from one event loop only."""

    def __init__(self, pool: Pool, config: AdmissionConfig | None) -> None:
        """None lets everything in."""
        self._pool = pool
        self._config = config
        self._backlog = 0
        self._counted = -_FRESH
        self._counting = asyncio.Lock()

    async def admit(self) -> None:
        """Let a new trajectory, group or session begin.

        Raises:
            RateLimited: the consumer has enough.
            PoolError: the pool cannot be read.
        """
        config = self._config
        if config is None:
            return
        async with self._counting:
            if time.monotonic() - self._counted >= _FRESH:
                self._backlog = await asyncio.to_thread(self._count, config)
                self._counted = time.monotonic()
        if self._backlog >= config.max_backlog:
            raise RateLimited(
                f"{config.consumer!r} has {self._backlog} {config.unit} units waiting, so nothing new begins; what has "
                "begun goes on. Try again",
                retry_after=_RETRY,
            )

    def _count(self, config: AdmissionConfig) -> int:
        wanted = Selection(channel=config.channel)
        spec = LeaseSpec(consumer=config.consumer, unit=config.unit, selection=wanted)
        return self._pool.backlog(spec, most=config.max_backlog)
