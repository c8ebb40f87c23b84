"""An engine that says what a test tells it to, token by token, and can fail, wait, and count what was cancelled."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from stepwell.engines.base import Chunk, Generation
from stepwell.errors import EngineError
from stepwell.rendering.renderer import Renderer
from stepwell.types import TokenSource


@dataclass
class ScriptedEngine:
    """Answers call k with `replies[k]` (the last one from then on), one token per chunk, then its end-of-turn token.

    Token j has log-probability -(j + 1) / 8.
    """

    renderer: Renderer
    replies: Sequence[str | Sequence[int]] = ("hello",)
    """Text, or the ids themselves."""
    model: str = "tiny"
    context_length: int = 4096
    policy_version: int = 3
    token_source: TokenSource = "engine"
    well: bool = True
    fail_after: int | None = None
    """Raise EngineError after so many tokens."""
    wait_after: int | None = None
    """After so many tokens, wait until `go` is set."""
    publish_after: int | None = None
    """After so many tokens, the policy version goes up by one."""
    go: threading.Event = field(default_factory=threading.Event)
    requests: list[Generation] = field(default_factory=list)
    sampled: int = 0
    cancelled: int = 0

    async def healthy(self) -> bool:
        return self.well

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
        self.requests.append(request)
        ids = self.renderer.encode(reply).tolist() if isinstance(reply, str) else list(reply)
        ids = [*ids, *self.renderer.eos_ids]
        cut = ids[: request.sampling.max_tokens]
        try:
            for position, token_id in enumerate(cut):
                await self._before(position)
                self.sampled += 1
                finish = None
                if position + 1 == len(cut):
                    finish = "stop" if len(cut) == len(ids) else "length"
                yield Chunk(
                    token_ids=(token_id,),
                    logprobs=(-(position + 1) / 8,),
                    policy_version=self.policy_version,
                    finish_reason=finish,
                )
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def _before(self, position: int) -> None:
        if position == self.fail_after:
            raise EngineError("the scripted engine fails here")
        if position == self.publish_after:
            self.policy_version += 1
        while position == self.wait_after and not self.go.is_set():  # noqa: ASYNC110 - set from the test's thread
            await asyncio.sleep(0.001)
