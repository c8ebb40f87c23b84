"""Engines over a tiny model for the laws: in this process, or behind a fake server of each kind."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from fastapi import FastAPI
from torch import Tensor

from stepwell.engines.base import Engine
from stepwell.engines.local import LocalEngine
from stepwell.engines.served import ServedEngine
from stepwell.policy.model import Policy
from tests.engines.laws import EOS, Bench
from tests.fakes.sampler import Sampler
from tests.fakes.servers import serving
from tests.policy.tiny import plain_logprobs, tiny_policy


class LocalBench:
    """The local engine; what happens before a pass happens where the engine takes hold of the weights."""

    choosy = False

    def __init__(self, kind: str = "qwen3", settings: dict | None = None) -> None:
        self.policy = tiny_policy(kind, settings=settings, max_position_embeddings=Bench.CONTEXT)
        self.passes = 0
        self._actions: dict[int, Callable[[], object]] = {}
        self._failing: set[int] = set()
        self._watch(self.policy)
        self.engine = LocalEngine(self.policy, eos_ids=[EOS], max_batch=Bench.SLOTS, seed=1)

    def _watch(self, policy: Policy) -> None:
        hidden, reading = policy.hidden, policy.reading

        @contextmanager
        def watched_reading() -> Iterator[int]:
            self._actions.pop(self.passes, lambda: None)()
            with reading() as version:
                yield version

        def watched_hidden(*arguments) -> Tensor:
            number = self.passes
            self.passes += 1
            if number in self._failing:
                raise RuntimeError("out of memory")
            return hidden(*arguments)

        policy.reading, policy.hidden = watched_reading, watched_hidden

    def logprobs(self, ids: Sequence[int], scale: float = 1.0) -> Tensor:
        return plain_logprobs(self.policy, ids, scale)

    def publish(self) -> None:
        self._publish(1.3)

    def publish_nan(self) -> None:
        self._publish(torch.nan)

    @torch.no_grad()
    def _publish(self, factor: float) -> None:
        with self.policy.writing():
            for parameter in self.policy.trainable_parameters():
                parameter.mul_(factor)
            self.policy.version += 1

    def before_pass(self, number: int, action: Callable[[], object]) -> None:
        self._actions[self.passes + number] = action

    async def notices_a_reader_that_left(self) -> None:
        """It knows at once."""

    def fail_in_pass(self, number: int) -> None:
        self._failing.add(self.passes + number)


class ServedBench:
    """A local bench behind a fake server. The server lives for a module, the engine for a test."""

    def __init__(self, local: LocalBench, sampler: Sampler, choosy: bool) -> None:
        self.choosy = choosy
        self.engine: Engine
        self._served: list[ServedEngine] = []
        self._local = local
        self._sampler = sampler
        self._passes_before = local.passes
        self._cancelled_before = sampler.cancelled

    def use(self, engine: Engine, served: Sequence[ServedEngine]) -> None:
        """`engine` answers by `served`."""
        self.engine = engine
        self._served = list(served)

    @property
    def passes(self) -> int:
        return self._local.passes - self._passes_before

    def logprobs(self, ids: Sequence[int], scale: float = 1.0) -> Tensor:
        return self._local.logprobs(ids, scale)

    def publish(self) -> None:
        self._local.publish()
        for engine in self._served:
            engine.policy_version += 1

    def publish_nan(self) -> None:
        raise NotImplementedError

    def before_pass(self, number: int, action: Callable[[], object]) -> None:
        self._local.before_pass(number, action)

    async def notices_a_reader_that_left(self) -> None:
        async with asyncio.timeout(30):
            while self._sampler.cancelled == self._cancelled_before:  # noqa: ASYNC110 - counted in another thread
                await asyncio.sleep(0.005)

    def fail_in_pass(self, number: int) -> None:
        self._local.fail_in_pass(number)


@contextmanager
def serving_tiny(
    app: Callable[[Sampler], FastAPI], settings: dict | None = None
) -> Iterator[tuple[str, LocalBench, Sampler]]:
    """A fake server of a tiny model, with these settings of its policy."""
    local = LocalBench(settings=settings)
    sampler = Sampler(local.policy, local.engine)
    try:
        with serving(app(sampler)) as url:
            yield url, local, sampler
    finally:
        sampler.resume()
        local.engine.close()
