"""Several engines that serve the same model, as one."""

import asyncio
import hashlib
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from stepwell.engines.base import Chunk, Engine, Generation, TakesWeights, Weights, WrongWeights
from stepwell.engines.served import ServedEngine
from stepwell.errors import ConfigError, EngineError, StepwellError
from stepwell.types import TokenSource

_log: Final = logging.getLogger(__name__)
_CHECK_EVERY: Final = 5.0
"""Seconds between two looks at a replica's health."""


class Replicas:
    """Keeps each session on one replica, so that its prefixes stay cached there, and goes round those that fail.

    A replica that fails is left alone until it says that it is healthy again. A request moves on to another one only
    while nothing of it has been answered.

    Weights go to all of them at once, and each answers with its own version in the meantime. One that does not take
    them is left out until it has. So is one that was not healthy for a while: it may have been started again since,
    with other weights.
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
        self._weights: Weights | None = None
        self._behind: set[int] = set()
        """Those that must not answer before they were given `_weights`."""
        self._giving = asyncio.Lock()
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
        return min(self._engines[number].policy_version for number in self._current() or range(len(self._engines)))

    @property
    def token_source(self) -> TokenSource:
        """`engine` if it is so for each of them."""
        return "text" if any(engine.token_source == "text" for engine in self._engines) else "engine"

    async def healthy(self) -> bool:
        """Whether one of them could serve a request now."""
        return any(await asyncio.gather(*(self._engines[number].healthy() for number in self._current())))

    async def load(self, weights: Weights) -> float:
        """Give the weights to all of them (see `TakesWeights`); enough if one takes them.

        Raises:
            ConfigError: as `TakesWeights` does.
            WrongWeights: none is left that has weights of a version.
            EngineError: none took them; those that can go on with what they have.
        """
        takers = [engine for engine in self._engines if isinstance(engine, TakesWeights)]
        if len(takers) < len(self._engines):
            raise ConfigError(f"the engines of {self.model!r} cannot load weights; start them again with them")
        self._look_after_them()
        async with self._giving:
            told = await asyncio.gather(*(_given(engine, weights) for engine in takers))
            failures = {number: error for number, error in enumerate(told) if isinstance(error, StepwellError)}
            if len(failures) == len(told):
                raise self._none_took(weights, failures)
            self._weights, self._behind = weights, set(failures)
            for error in failures.values():
                _log.warning("a replica is left out until it has version %d: %s", weights.version, error)
            return max(difference for difference in told if isinstance(difference, float))

    def _none_took(self, weights: Weights, failures: Mapping[int, StepwellError]) -> StepwellError:
        wrong = {number for number, error in failures.items() if isinstance(error, WrongWeights)}
        self._behind |= wrong
        if not wrong or not self._current():
            return failures[min(wrong or failures)]
        return EngineError(f"no replica took version {weights.version}; one said: {failures[min(wrong)]}")

    def _current(self) -> list[int]:
        """Those that have the weights that they say."""
        return [number for number in range(len(self._engines)) if number not in self._behind]

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
                    if started or len(self._engines) == 1:
                        raise
                    failure = error
        if failure is None:
            raise EngineError("no replica has good weights; they answer once they were given some")
        raise EngineError(f"none of {len(self._engines)} replicas could serve the request; the last said: {failure}")

    def _order(self, session: str) -> list[int]:
        """The replicas, in the order in which to try them: by rendezvous hashing, those that are down last."""
        # a request without a session has no prefix to share, so such requests take turns
        key = session.encode() if session else str(next(self._turn)).encode()
        return sorted(
            self._current(), key=lambda n: (n in self._down, hashlib.blake2b(key + b"\0" + self._names[n]).digest())
        )

    def _look_after_them(self) -> None:
        """Start the health checks, once per event loop."""
        task = self._checking
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            self._checking = asyncio.create_task(self._check_forever(), name="stepwell-replicas")

    async def _check_forever(self) -> None:
        while True:
            healths = await asyncio.gather(*(engine.healthy() for engine in self._engines))
            self._down = {number for number, healthy in enumerate(healths) if not healthy}
            if self._weights is not None:
                self._behind |= self._down
                await asyncio.gather(*(self._catch_up(number) for number in self._behind - self._down))
            await asyncio.sleep(self._check_every)

    async def _catch_up(self, number: int) -> None:
        """Give a replica that is behind the weights that the others have."""
        engine = self._engines[number]
        async with self._giving:
            if self._weights is None or number not in self._behind or not isinstance(engine, TakesWeights):
                return
            given = await _given(engine, self._weights)
            if isinstance(given, float):
                self._behind.discard(number)
            else:
                _log.warning("a replica still does not take version %d: %s", self._weights.version, given)


async def _given(engine: TakesWeights, weights: Weights) -> float | StepwellError:
    """The difference, or why it does not take them."""
    try:
        return await engine.load(weights)
    except StepwellError as error:
        return error


async def replicated(engines: Iterable[Awaitable[Engine]]) -> Engine:
    """All engines as one. Raises ConfigError as `Replicas` does.

    One that takes weights is looked after even if it is alone: it is given them again when its server was.
    """
    connected = await asyncio.gather(*engines)
    alone = len(connected) == 1 and not isinstance(connected[0], TakesWeights)
    return connected[0] if alone else Replicas(connected)
