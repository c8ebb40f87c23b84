"""Players as actors of a Ray cluster. The optional package is imported here, so whoever imports this may lack it."""

import asyncio
import logging
import os
import socket
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
from stepwell.errors import ConfigError, Unavailable

_FAREWELL: Final = 10.0
"""Seconds that a player has to record that what he plays is cancelled."""
_STORE: Final = 128 * 2**20
"""Bytes for objects, of a cluster of our own: what players tell is small."""
_GRACE: Final = 30.0
"""Seconds after which it is asked whether somebody who has no place in the cluster yet can have one at all."""
_ANSWER: Final = 10.0
"""Seconds within which the head of a cluster lets somebody connect."""
_log: Final = logging.getLogger(__name__)


class Actor:
    """See `stepwell.cli.fleet.life.Life`."""

    def __init__(self, actor: Any, players: int, ranks: int = 0) -> None:
        """A handle of a `PlayerActor`, one of so many, in a cluster that has so many `ranks` too."""
        self._actor = actor
        self._players = players
        self._ranks = ranks
        self._lines = actor.tell.options(num_returns="streaming").remote()
        self._sending: set[asyncio.Task[None]] = set()
        self._pid = 0
        self._cause = ""

    @classmethod
    async def begin(cls, posting: Posting, players: int, ranks: int = 0) -> Self:
        """Ask for one, on the node that has most room; it is there once Ray has found a place."""
        made = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(PlayerActor)
        return cls(made.remote(posting), players, ranks)

    @property
    def pid(self) -> int:
        """See `Life`."""
        return self._pid

    def send(self, job: Job) -> None:
        """See `Life`."""
        task = asyncio.create_task(self._send(msgspec.json.encode(job)))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, job: bytes) -> None:
        try:
            await self._actor.take.remote(job)
        except RayError as error:  # a job that was not taken is never told of
            self._over(error)

    async def told(self) -> AsyncIterator[Told]:
        """See `Life`. Raises ConfigError where the cluster cannot have so many players."""
        try:
            self._pid = await self._placed()
            async for line in self._lines:
                yield TOLD.decode(await line)
        except RayError as error:
            self._over(error)
        finally:  # one who plays on where nobody listens would keep the place of the next
            self._pid = 0
            self._kill()

    async def _placed(self) -> int:
        """His process, once Ray has found a place for him."""
        begun = asyncio.ensure_future(self._actor.pid.remote())
        try:
            while not (await asyncio.wait({begun}, timeout=_GRACE))[0]:
                await asyncio.to_thread(_check_room, self._players, self._ranks)
            return int(await begun)
        finally:
            begun.cancel()

    def _over(self, error: RayError) -> None:
        self._cause = self._cause or (str(error).strip().splitlines() or [type(error).__name__])[-1]
        self._kill()

    def _kill(self) -> None:
        with suppress(RayError):
            ray.kill(self._actor)

    async def cause(self) -> str:
        """See `Life`."""
        return self._cause or "its stream ended"

    async def end(self) -> None:
        """See `Life`."""
        self._actor.leave.remote()
        with suppress(RayError, TimeoutError):
            await asyncio.wait_for(self._lines.completed(), _FAREWELL)
        self._kill()


def _check_room(players: int, ranks: int) -> None:
    """Who waits for a CPU that is in use says so; who waits for one that there is not would do so for ever."""
    total, free = (int(room.get("CPU", 0)) for room in (ray.cluster_resources(), ray.available_resources()))
    nodes = sum(node["Alive"] for node in ray.nodes())
    if total < players + ranks:
        others = f" beside {ranks} more ranks of the learner" if ranks else ""
        raise ConfigError(
            f"the cluster has {total} CPUs on {nodes} nodes, and {players} players{others} are to have one each: set "
            f"rollout.workers={max(total - ranks, 1)}, or add nodes (`ray start --address=…`)"
        )
    if not free:
        _log.warning("a player waits: all %s CPUs of the cluster are in use, or their players only start", total)


@dataclass(frozen=True, slots=True)
class Cluster:
    """As it is seen from this machine."""

    host: str
    """This machine's address for the others."""
    machines: int


_own: Final[list[Cluster]] = []
"""The cluster that this process has started, while it runs."""


@contextmanager
def joined(players: int, ranks: int = 0) -> Iterator[Cluster]:
    """The cluster that runs (RAY_ADDRESS, or one on this machine), or else one of our own with room for `players`, and
    for so many `ranks` beside the first. Within the block of another call it is the same one.

    Raises:
        Unavailable: RAY_ADDRESS names one that cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a training run reports to nobody
    if ray.is_initialized():
        yield _own[0] if _own else _seen()
        return
    if named := os.environ.get("RAY_ADDRESS", ""):
        check_reached(named, "RAY_ADDRESS names it: start it, or unset that")
    try:
        ray.init(address="auto", logging_level="warning")
        own = False
    except ConnectionError:
        ray.init(
            address="local",
            num_cpus=players + ranks,
            object_store_memory=_STORE,
            include_dashboard=False,
            logging_level="warning",
        )
        own = True
    if own:
        _own.append(Cluster(LOOPBACK, 1))
    try:
        yield _own[0] if own else _seen()
    finally:
        _own.clear()
        ray.shutdown()


def check_reached(address: str, remedy: str) -> None:
    """That somebody listens at `host:port`; Ray itself would try for minutes. Raises Unavailable."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():  # one of the other ways to name a cluster
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER).close()
    except OSError as error:
        raise Unavailable(f"no Ray cluster answers at {address} ({error}); {remedy}") from error


def _seen() -> Cluster:
    machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    return Cluster(ray.util.get_node_ip_address(), len(machines))
