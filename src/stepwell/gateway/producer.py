"""The gateway as a producer: while it serves, it says so in the pool, so that nobody waits for one that is gone."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from stepwell.errors import StepwellError
from stepwell.pool.base import Pool
from stepwell.types import new_id

_log: Final = logging.getLogger(__name__)

ALIVE_SECONDS: Final = 60.0
"""How long a sign of life counts: who waits for a gateway that was killed is told after at most so long."""
_BEATS: Final = 3
"""Signs of life in that time: two of them may be lost."""
_FAREWELL: Final = 1e-3
"""Seconds for which one still counts as alive that has said it will make no more."""


@asynccontextmanager
async def producing(pool: Pool, seconds: float = ALIVE_SECONDS) -> AsyncIterator[None]:
    """For as long as the block lasts, `pool` has a producer, each of whose signs of life counts for `seconds`.

    A pool that cannot be written now is no reason to stop: that is logged, and tried again with the next sign.
    """
    name, over = new_id("gateway"), asyncio.Event()
    await _say(pool, name, seconds)
    beating = asyncio.create_task(_beat(pool, name, seconds, over))
    try:
        yield
    finally:
        over.set()  # instead of a cancellation, after which a sign that is under way could come after the farewell
        await beating
        await _say(pool, name, _FAREWELL)


async def _beat(pool: Pool, name: str, seconds: float, over: asyncio.Event) -> None:
    while not over.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), seconds / _BEATS)
            return
        await _say(pool, name, seconds)


async def _say(pool: Pool, name: str, seconds: float) -> None:
    try:
        await asyncio.to_thread(pool.heartbeat, name, seconds)
    except StepwellError as error:
        _log.warning("the pool was not told that this gateway is alive: %s", error)
