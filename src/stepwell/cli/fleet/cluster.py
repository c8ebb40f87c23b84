"""Players as actors of a Ray cluster. The optional package is imported here, so whoever imports this may lack it."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec
import ray
from ray.exceptions import RayError

from stepwell.cli.fleet.actor import PlayerActor
from stepwell.cli.fleet.jobs import TOLD, Job, Told
from stepwell.cli.fleet.post import Posting
from stepwell.cli.fleet.server import LOOPBACK

_FAREWELL: Final = 10.0
"""Seconds that a player has to record that what he plays is cancelled."""
_STORE: Final = 128 * 2**20
"""Bytes for objects, of a cluster of our own: what players tell is small."""


class Actor:
    """See `stepwell.cli.fleet.life.Life`."""

    def __init__(self, actor: Any) -> None:
        """A handle of a `PlayerActor`."""
        self._actor = actor
        self._lines = actor.tell.options(num_returns="streaming").remote()
        self._pid = 0
        self._cause = "its stream ended"

    @classmethod
    async def begin(cls, posting: Posting) -> Self:
        """Ask for one, on the node that has most room; it is there once Ray has found a place."""
        made = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(PlayerActor)
        return cls(made.remote(posting))

    @property
    def pid(self) -> int:
        """See `Life`."""
        return self._pid

    def send(self, job: Job) -> None:
        """See `Life`."""
        self._actor.take.remote(msgspec.json.encode(job))

    async def told(self) -> AsyncIterator[Told]:
        """See `Life`."""
        try:
            self._pid = await self._actor.pid.remote()
            async for line in self._lines:
                yield TOLD.decode(await line)
        except RayError as error:
            self._cause = str(error).strip().splitlines()[-1]
        finally:  # one who plays on where nobody listens would keep the place of the next
            self._pid = 0
            with suppress(RayError):
                ray.kill(self._actor)

    async def cause(self) -> str:
        """See `Life`."""
        return self._cause

    async def end(self) -> None:
        """See `Life`."""
        self._actor.leave.remote()
        with suppress(RayError, TimeoutError):
            await asyncio.wait_for(self._lines.completed(), _FAREWELL)
        ray.kill(self._actor)


@dataclass(frozen=True, slots=True)
class Cluster:
    """As it is seen from this machine."""

    host: str
    """This machine's address for the others."""
    machines: int


@contextmanager
def joined(players: int) -> Iterator[Cluster]:
    """The cluster that runs (RAY_ADDRESS, or one on this machine), or else one of our own with room for `players`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a training run reports to nobody
    if ray.is_initialized():
        yield _seen()
        return
    try:
        ray.init(address="auto", logging_level="warning")
        own = False
    except ConnectionError:
        ray.init(
            address="local",
            num_cpus=players,
            object_store_memory=_STORE,
            include_dashboard=False,
            logging_level="warning",
        )
        own = True
    try:
        yield Cluster(LOOPBACK, 1) if own else _seen()
    finally:
        ray.shutdown()


def _seen() -> Cluster:
    machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    return Cluster(ray.util.get_node_ip_address(), len(machines))
