"""What the fake inference servers sample with: a local engine, asked for whole distributions, so that each can report
log-probabilities the way the server that it stands for does."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from fastapi import Request
from safetensors.torch import load_file
from torch import Tensor

from stepwell.engines.base import Generation
from stepwell.engines.local import LocalEngine
from stepwell.policy.model import Policy
from tests.policy.tiny import plain_logprobs

T = TypeVar("T")


@dataclass(frozen=True)
class Sampled:
    """One token, with what its distribution was."""

    token: int
    logp: Tensor
    """[W], after temperature, before constraint and truncation."""
    finish: str | None
    scale: float

    @property
    def raw(self) -> Tensor:
        """[W], before temperature."""
        return (self.logp * self.scale).log_softmax(-1)


@dataclass
class Sampler:
    """A model behind a fake server."""

    policy: Policy
    engine: LocalEngine
    requests: int = 0
    cancelled: int = 0
    """Requests whose reader went away before the end."""
    running: int = 0
    paused: bool = False
    reloads: int = 0

    async def sample(self, request: Generation) -> AsyncGenerator[Sampled, None]:
        """Token by token."""
        self.requests += 1
        self.running += 1
        finished = False
        try:
            async with aclosing(self.engine.generate(request)) as chunks:
                async for chunk in chunks:
                    logp = torch.empty(self.policy.vocabulary_size)
                    for token, logprob in chunk.top[0]:
                        logp[token] = logprob
                    finished = chunk.finish_reason is not None
                    yield Sampled(chunk.token_ids[0], logp, chunk.finish_reason, request.sampling.scale)
        finally:
            self.running -= 1
            self.cancelled += not finished

    async def pause(self) -> None:
        """Have requests stay where they are."""
        if not self.paused:
            await asyncio.to_thread(self.policy._lock.acquire)
            self.paused = True

    def resume(self) -> None:
        """Let them go on."""
        if self.paused:
            self.paused = False
            self.policy._lock.release()

    async def idle(self) -> None:
        """Wait for their end."""
        while self.running:  # noqa: ASYNC110 - counted, not signalled
            await asyncio.sleep(0.005)

    def reload(self, folder: Path) -> None:
        """As servers do it: in place, and silent about tensors that are missing."""
        self.reloads += 1
        self.policy.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        self.policy.version += 1  # by which the local engine knows that its cache is old

    def adapt(self, folder: Path) -> None:
        """The same with an adapter, for which the policy has the place."""
        self.reloads += 1
        tensors = load_file(folder / "adapter_model.safetensors")
        names = {name.removeprefix("base_model.model."): name for name in tensors}
        own = {name.replace(".default.", "."): p for name, p in self.policy.model.named_parameters() if "lora_" in name}
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(tensors[names[name]])
        self.policy.version += 1

    def scores(self, ids: Sequence[int]) -> Tensor:
        """[len(ids), W]: log-probabilities of what follows each prefix."""
        return plain_logprobs(self.policy, ids)


def truncated(logp: Tensor, top_k: int, top_p: float) -> Tensor:
    """[W]: log-probabilities after truncation, the rest being -inf."""
    p, order = logp.exp().sort(descending=True)
    kept = p.cumsum(0) - p < top_p
    kept[0] = True
    if top_k > 0:
        kept[top_k:] = False
    return torch.full_like(logp, -torch.inf).scatter(0, order, torch.where(kept, p.log(), -torch.inf)).log_softmax(-1)


def likeliest(logp: Tensor, count: int, sampled: int) -> list[tuple[int, float]]:
    """(id, log-probability) of the sampled token, then of the `count` likeliest, as servers order them."""
    best = logp.topk(count) if count else None
    found = {sampled: float(logp[sampled])}
    if best is not None:
        found.update(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return list(found.items())


async def unless_gone(request: Request, work: Callable[[], Awaitable[T]]) -> T | None:
    """The result of `work`, which is cancelled if the client goes away first."""
    task = asyncio.ensure_future(work())

    async def watch() -> None:
        while not await request.is_disconnected():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        watching.cancel()
