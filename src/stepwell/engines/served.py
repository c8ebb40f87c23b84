"""What engines behind an inference server have in common: its facts, and the checks of what it sends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from pydantic import Field

from stepwell.engines.base import Chunk, Engine, Generation
from stepwell.engines.upstream import Upstream, UpstreamConfig, refusal
from stepwell.errors import ConfigError, ContextOverflow, EngineError, InvalidRequest, StepwellError
from stepwell.rendering.messages import Tool, ToolCall
from stepwell.rendering.renderer import Renderer
from stepwell.types import FinishReason, TokenSource

Top = tuple[tuple[int, float], ...]

NOISE: Final = 1e-3
"""Nats by which two evaluations of one position may differ."""
NEUTRAL: Final = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Sent because a model's generation_config.json may say otherwise, and would then silently change the distribution."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a model writes what an upstream tells apart: text is all that it samples."""

    write_calls: Callable[[Sequence[ToolCall], Sequence[Tool]], str]
    """Calls, given the tools that are offered."""
    thinking: tuple[str, str] | None = ("<think>\n", "\n</think>\n\n")
    """What comes before and after reasoning; None for a model that does not reason."""


class ServedConfig(UpstreamConfig):
    """Base of the settings of engines behind a server."""

    model: str = ""
    """The name under which the servers offer the model; empty: the first that they list."""
    policy_version: int = Field(default=0, ge=0)
    """Version of the weights that the servers have loaded."""

    async def connect(self, renderer: Renderer, syntax: Syntax) -> Engine:
        """The engine, after the servers were asked what they serve.

        Raises:
            ConfigError: they do not serve what was asked for, or are of another kind.
            EngineError: one cannot be reached.
        """
        raise NotImplementedError


class ServedEngine:
    """The facts of an engine behind a server; `policy_version` is that of the weights it was last known to have."""

    HEALTH_PATH = "/health"
    """Where a GET succeeds as long as the server could answer."""

    def __init__(self, upstream: Upstream, *, model: str, context_length: int, policy_version: int = 0) -> None:
        """Stand for the server at `upstream`."""
        self._upstream = upstream
        self.model: Final = model
        self.context_length: Final = context_length
        self.policy_version = policy_version

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return self._upstream.url

    @property
    def token_source(self) -> TokenSource:
        """Ids and log-probabilities are the sampler's own."""
        return "engine"

    async def healthy(self) -> bool:
        """Whether the server says so. Never raises."""
        return await self._upstream.answers(self.HEALTH_PATH)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._upstream.aclose()


def room_for(request: Generation, context_length: int) -> int:
    """How many tokens may be sampled.

    Raises:
        InvalidRequest: the prompt is empty or holds a negative id.
        ContextOverflow: there is no room for a single one.
    """
    length = len(request.prompt_ids)
    if not length or request.prompt_ids.min() < 0:
        raise InvalidRequest("a prompt needs at least one token, and no id is negative")
    if length >= context_length:
        raise ContextOverflow(f"the prompt has {length} tokens; this model's context holds {context_length}")
    return min(request.sampling.max_tokens, context_length - length)


class Answer:
    """One answer while it arrives: checked, counted, and its last tokens held back until all is known to be there."""

    def __init__(self, engine: ServedEngine) -> None:
        """Begin before the first token."""
        self._engine = engine
        self._url = engine.url
        self._last: Chunk | None = None
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._top: list[Top] = []
        self.count = 0
        """Tokens so far."""
        self.expected: int | None = None
        """Tokens by the server's own count; None: it has told none."""

    def add(
        self, ids: Sequence[int], logprobs: Sequence[float], top: Sequence[Top] = (), finish: FinishReason | None = None
    ) -> None:
        """Tokens that just arrived; with `finish`, the last ones.

        Raises:
            EngineError: ids and log-probabilities do not match.
        """
        if len(ids) != len(logprobs):
            raise EngineError(f"{self._url} sent {len(logprobs)} log-probabilities for {len(ids)} tokens")
        self.count += len(ids)
        if finish is not None:
            self._last = self._chunk(ids, logprobs, top, finish)
        else:
            self._ids += ids
            self._logprobs += logprobs
            self._top += top

    def new(self) -> Chunk | None:
        """What was added since the last call, but for the last tokens; None if that is nothing."""
        ids, logprobs, top = self._ids, self._logprobs, self._top
        if not ids:
            return None
        self._ids, self._logprobs, self._top = [], [], []
        return self._chunk(ids, logprobs, top)

    def end(self) -> Chunk:
        """The last chunk, after the server has said how many tokens it sampled.

        Raises:
            EngineError: the answer is not whole.
        """
        if self._last is None:
            raise EngineError(f"{self._url} ended its answer in the middle, after {self.count} tokens")
        if self.expected != self.count:
            raise EngineError(f"{self._url} counts {self.expected} sampled tokens, but sent {self.count}")
        return self._last

    def _chunk(
        self, ids: Sequence[int], logprobs: Sequence[float], top: Sequence[Top], finish: FinishReason | None = None
    ) -> Chunk:
        return Chunk(
            token_ids=tuple(ids),
            logprobs=tuple(logprobs),
            policy_version=self._engine.policy_version,
            finish_reason=finish,
            top=tuple(top),
        )


class Problem(msgspec.Struct):
    """An error that a server reports inside a stream."""

    message: str = ""
    code: int | str | None = None

    def explained(self, url: str) -> StepwellError:
        """What it means for the caller."""
        status = int(self.code) if str(self.code).isdigit() else 500  # type: ignore[arg-type]  # digits
        return refusal(url, status, self.message)


def split_by_version(chunk: Chunk, version: int) -> list[Chunk]:
    """A whole answer that began under `version`: if the weights changed since, nobody knows where, so it spans both."""
    if chunk.policy_version == version or len(chunk.token_ids) < 2:
        return [chunk]
    first = Chunk(token_ids=chunk.token_ids[:1], logprobs=chunk.logprobs[:1], policy_version=version, top=chunk.top[:1])
    rest = Chunk(
        token_ids=chunk.token_ids[1:],
        logprobs=chunk.logprobs[1:],
        policy_version=chunk.policy_version,
        finish_reason=chunk.finish_reason,
        top=chunk.top[1:],
    )
    return [first, rest]


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says about a model that it offers."""

    id: str
    context_length: int
    root: str
    """What it was started with, a folder perhaps; empty: it does not tell."""


async def served_model(upstream: Upstream, name: str) -> ServedModel:
    """The model `name` that the server offers; its first one if the name is empty.

    Raises:
        ConfigError: it does not offer it, or does not say how long its context is.
        EngineError: it cannot be reached.
    """
    offered = (await upstream.get("/v1/models", _Models)).data
    model = next((model for model in offered if name in ("", model.id)), None)
    if model is None:
        names = ", ".join(model.id for model in offered) or "nothing"
        raise ConfigError(f"{upstream.url} does not serve {name!r}; it serves {names}")
    if model.max_model_len is None:
        raise ConfigError(f"{upstream.url} does not tell how long a context {model.id!r} takes (max_model_len)")
    return ServedModel(model.id, model.max_model_len, model.root or "")
