"""Several engines that serve the same model, as one."""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from stepwell.engines.base import Chunk, Engine, Generation
from stepwell.engines.served import ServedEngine
from stepwell.errors import ConfigError, EngineError
from stepwell.types import TokenSource

_CHECK_EVERY: Final = 5.0
"""Seconds between two looks at a replica's health."""


class Replicas:
    """Keeps each session on one replica, so that its prefixes stay cached there, and goes round those that fail.

    A replica that fails is left alone until it says that it is healthy again. A request moves on to another one only
    while nothing of it has been answered.
    """

    def __init__(self, engines: Sequence[Engine], *, check_every: float = _CHECK_EVERY) -> None:
        """Join engines of one model; their health is looked at every `check_every` seconds once requests come.

        Raises:
            ConfigError: there is none, or they do not serve the same model.
        """
        models = {engine.model for engine in engines}
        if len(models) != 1:
            raise ConfigError(f"replicas must serve one model, these serve {', '.join(sorted(models)) or 'none'}")
        self._engines = list(engines)
        self._names = [str(number).encode() for number in range(len(engines))]
        self._down: set[int] = set()
        self._turn = itertools.count()
        self._check_every = check_every
        self._checking: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        """Name under which the model is served."""
        return self._engines[0].model

    @property
    def context_length(self) -> int:
        """What each of them can hold, in tokens."""
        return min(engine.context_length for engine in self._engines)

    @property
    def policy_version(self) -> int:
        """The lowest version that could sample the next token."""
        return min(engine.policy_version for engine in self._engines)

    @property
    def token_source(self) -> TokenSource:
        """`engine` if it is so for each of them."""
        return "text" if any(engine.token_source == "text" for engine in self._engines) else "engine"

    async def healthy(self) -> bool:
        """Whether one of them could serve a request now."""
        return any(await asyncio.gather(*(engine.healthy() for engine in self._engines)))

    async def aclose(self) -> None:
        """Stop looking after the replicas, and close their connections."""
        if self._checking is not None:
            self._checking.cancel()
            self._checking = None
        for engine in self._engines:
            if isinstance(engine, ServedEngine):
                await engine.aclose()

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        """Stream one completion from the session's replica, or the next one that works (see the protocol)."""
        self._look_after_them()
        failure: EngineError | None = None
        for number in self._order(request.session):
            started = False
            async with aclosing(self._engines[number].generate(request)) as chunks:
                try:
                    async for chunk in chunks:
                        started = True
                        yield chunk
                    return
                except EngineError as error:
                    self._down.add(number)
                    if started:
                        raise
                    failure = error
        raise EngineError(f"none of {len(self._engines)} replicas could serve the request; the last said: {failure}")

    def _order(self, session: str) -> list[int]:
        """All replicas, in the order in which to try them: by rendezvous hashing, those that are down last."""
        # a request without a session has no prefix to share, so such requests take turns
        key = session.encode() if session else str(next(self._turn)).encode()
        numbers = range(len(self._engines))
        return sorted(numbers, key=lambda n: (n in self._down, hashlib.blake2b(key + b"\0" + self._names[n]).digest()))

    def _look_after_them(self) -> None:
        """Start the health checks, once per event loop."""
        task = self._checking
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            self._checking = asyncio.create_task(self._check_forever(), name="stepwell-replicas")

    async def _check_forever(self) -> None:
        while True:
            healths = await asyncio.gather(*(engine.healthy() for engine in self._engines))
            self._down = {number for number, healthy in enumerate(healths) if not healthy}
            await asyncio.sleep(self._check_every)


async def replicated(engines: Iterable[Awaitable[Engine]]) -> Engine:
    """The engine that was connected, or all of them as one. Raises ConfigError as `Replicas` does."""
    connected = await asyncio.gather(*engines)
    return connected[0] if len(connected) == 1 else Replicas(connected)
