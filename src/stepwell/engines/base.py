"""What samples tokens, as the gateway sees it: ids in; ids, log-probabilities and policy version out, streamed."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import msgspec

from stepwell.errors import EngineError
from stepwell.rendering.messages import Message, Tool
from stepwell.types import FinishReason, Ids, Sampling, TokenSource

TOLERANCE: Final = 1e-2
"""Nats by which two programs, or two precisions, may differ in the log-probability of one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What the prompt was rendered from, for engines that take no token ids."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    forced: bool = False
    """Whether the answer must be a call."""
    forced_name: str = ""
    """Of this tool, if not empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One request to an engine."""

    prompt_ids: Ids
    """int32 [P], P >= 1."""
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    """Texts after which the rest is not wanted. The caller cuts by itself; an engine that knows them saves work."""
    top_logprobs: int = 0
    """How many of the likeliest tokens to report at each position."""
    json_schema: str = ""
    """JSON text of a schema: only tokens that keep the response a JSON value that meets it are candidates. Empty: all
    are. `{}` is any JSON value."""
    session: str = ""
    """Generations of one session share prefixes: engines with several replicas keep them together."""
    stream: bool = True
    """Whether anyone looks before the end; if not, an engine may answer in one chunk."""
    conversation: Conversation | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens as they are sampled, in order: usually one at a time, or those that arrived together.

    A struct, because one is made for each token, and a frozen dataclass takes ten times as long to make.
    """

    token_ids: tuple[int, ...]
    """Sampled since the chunk before; the end-of-turn token included. May be empty in the last chunk."""
    logprobs: tuple[float, ...]
    """Nats, one per token id, after temperature and before top-p and top-k."""
    policy_version: int
    """The version of the weights that sampled them. After an update in mid-stream it goes up, while keys and values of
    the tokens before stay as the older weights made them."""
    finish_reason: FinishReason | None = None
    """Set on the last chunk only."""
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token, if asked for: (id, log-probability) of the likeliest ones, best first."""


class Engine(Protocol):
    """Samples completions of token sequences, many at once.

    Laws (tests/engines/laws.py): every stream ends with exactly one chunk that has a finish_reason; the number of
    tokens is at most `sampling.max_tokens` (with `token_source` `text`, by the upstream's count); log-probabilities are
    those of the model at that policy version; closing the stream early cancels the work; requests that cannot fit raise
    `ContextOverflow` before the first chunk.
    """

    @property
    def model(self) -> str:
        """Name under which the model is served."""
        ...

    @property
    def context_length(self) -> int:
        """Largest P + R that the model can hold, in tokens."""
        ...

    @property
    def policy_version(self) -> int:
        """Version of the weights that would sample the next token."""
        ...

    @property
    def token_source(self) -> TokenSource:
        """`engine` if ids and log-probabilities are the sampler's own; `text` if they were made from text afterwards,
        with 0 in place of every log-probability."""
        ...

    async def healthy(self) -> bool:
        """Whether it could serve a request now. Never raises."""
        ...

    def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        """Stream one completion; closing the generator early cancels the work.

        Raises:
            InvalidRequest: the prompt is empty, or has an id outside the vocabulary; the temperature is next to 0; it
                asks for something that this engine cannot honour.
            ContextOverflow: the prompt leaves no room for a single token.
            EngineError: sampling failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How much of the prompts an engine had computed before."""

    prompt_tokens: int = 0
    """Of all requests that were begun."""
    reused_tokens: int = 0
    """Those of them whose keys and values were there already."""

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that was not computed again; 0 without a request."""
        return self.reused_tokens / max(self.prompt_tokens, 1)

    def since(self, earlier: "CacheUse") -> "CacheUse":
        """What came after an earlier count."""
        return CacheUse(self.prompt_tokens - earlier.prompt_tokens, self.reused_tokens - earlier.reused_tokens)


@runtime_checkable
class ReportsCache(Protocol):
    """An engine that knows how often its prefix cache hits; those behind a server tell it there."""

    @property
    def cache_use(self) -> CacheUse:
        """Counts since the engine was made."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A version of the weights, and what tells that an engine samples with them: reloads can be silently wrong."""

    folder: Path
    """Where they are, under the same path for whoever loads them."""
    version: int
    """Policy version that tokens are recorded with from then on."""
    prompt_ids: Ids
    """int32 [P], P >= 1: a prompt to try them with."""
    token: int
    """The likeliest token after it."""
    logprob: float
    """Of that token, as the trainer computes it: nats, at temperature 1."""
    tolerance: float = TOLERANCE
    """By how much the engine's may differ."""


class WrongWeights(EngineError):
    """The engine may hold weights of no version: nothing that it samples is worth anything until good ones come."""


@runtime_checkable
class TakesWeights(Protocol):
    """An engine that goes on with other weights."""

    async def load(self, weights: Weights) -> float:
        """Sample with these from now on; requests under way go on with them.

        Returns:
            How far the engine's log-probability is from the trainer's, in nats: at most `weights.tolerance`.

        Raises:
            ConfigError: they are not of this model, or it cannot be given weights; it goes on with those it has.
            WrongWeights: loading broke off, or what it computes now is something else.
            EngineError: they could not be loaded; it goes on with those it has.
        """
        ...
