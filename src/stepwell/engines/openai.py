"""Any upstream that speaks OpenAI's chat completions and gives text only.

Its answers are tokenised here, so the ids are not those that were sampled and there are no log-probabilities: such
steps are captured, with `token_source` `text`, but not trained on by default. Reasoning and tool calls, which the
upstream tells apart, are written back as the text that a model would have sampled, so that all that follows reads them
as it reads any other answer.
"""

import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec
from pydantic import Field

from stepwell.engines.base import Chunk, Conversation, Engine, Generation
from stepwell.engines.replicas import replicated
from stepwell.engines.served import Problem, ServedConfig, ServedEngine, Syntax
from stepwell.engines.upstream import Upstream
from stepwell.errors import ConfigError, EngineError, InvalidRequest
from stepwell.rendering.messages import ToolCall
from stepwell.rendering.renderer import Renderer
from stepwell.rendering.wire import message_to_json, tool_to_json
from stepwell.types import FinishReason, TokenSource

_PATH: Final = "/v1/chat/completions"


class OpenAIConfig(ServedConfig):
    """An upstream that gives text only."""

    model: str = Field(min_length=1)
    """The model to ask for."""
    context_length: int = Field(default=128 * 1024, ge=1)
    """Tokens of prompt and answer that the model can hold; the upstream refuses by itself what is too long for it."""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the upstream calls the limit of an answer's tokens; OpenAI's own reasoning models know only the second."""

    async def connect(self, renderer: Renderer, syntax: Syntax) -> Engine:
        """See `ServedConfig`. Nothing is asked: upstreams differ in what they tell."""
        return await replicated(_made(OpenAIEngine(url, self, renderer, syntax)) for url in self.urls)


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Said(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    """A whole answer, or one event of a stream."""

    choices: list[_Choice] = []
    error: Problem | None = None


_EVENTS: Final = msgspec.json.Decoder(_Event)


class OpenAIEngine(ServedEngine):
    """Answers by an upstream's chat completions; meets `stepwell.engines.base.Engine`, but for what it cannot know."""

    HEALTH_PATH = "/v1/models"

    def __init__(self, url: str, config: OpenAIConfig, renderer: Renderer, syntax: Syntax) -> None:
        """Answer by the upstream at `url`, with the tokens of `renderer`.

        Raises:
            ConfigError: with this tokenizer, text that is tokenised in parts does not read as a whole.
        """
        parts = [int(i) for part in ("say", "ing", " so") for i in renderer.encode(part)]
        if renderer.decode(parts) != "saying so":
            raise ConfigError("this tokenizer cannot take text in parts; a text-only upstream needs a byte-level one")
        upstream = Upstream(url, config)
        super().__init__(
            upstream,
            model=config.model,
            context_length=config.context_length,
            policy_version=config.policy_version,
        )
        self._limit_field = config.limit_field
        self._renderer = renderer
        self._syntax = syntax

    @property
    def token_source(self) -> TokenSource:
        """Ids are made from text."""
        return "text"

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        """Stream one answer (see the protocol)."""
        if request.conversation is None:
            raise InvalidRequest("this upstream answers messages only, not a prompt of text or token ids")
        if request.top_logprobs:
            raise InvalidRequest("this upstream gives text only, so no log-probabilities can be told")
        body = self._body(request, request.conversation)
        writing = _Writing(self._syntax, request.conversation)
        if not request.stream:
            event = await self._upstream.post(_PATH, body, _EVENTS)
            text = "".join(self._written(writing, event))
            yield self._chunk(text + "".join(writing.end(self.url)), writing.finish)
            return
        with await self._upstream.events(_PATH, body | {"stream": True}) as events:
            while payloads := await events.payloads():
                for payload in payloads:
                    if payload != b"[DONE]":
                        for text in self._written(writing, self._upstream.decoded(payload, _EVENTS)):
                            yield self._chunk(text)
        yield self._chunk("".join(writing.end(self.url)), writing.finish)

    def _written(self, writing: "_Writing", event: _Event) -> Iterator[str]:
        if event.error is not None:
            raise event.error.explained(self.url)
        if event.choices:
            choice = event.choices[0]
            yield from writing.add(choice.delta or choice.message or _Said())
            writing.finish = _finish(choice.finish_reason) or writing.finish

    def _chunk(self, text: str, finish: FinishReason | None = None) -> Chunk:
        ids = self._renderer.encode(text).tolist()
        if finish == "stop":
            ids.append(min(self._renderer.eos_ids))
        return Chunk(
            token_ids=tuple(ids),
            logprobs=(0.0,) * len(ids),
            policy_version=self.policy_version,
            finish_reason=finish,
        )

    def _body(self, request: Generation, conversation: Conversation) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            # without old reasoning: no two upstreams agree on what to call it, and some refuse what they do not know
            "messages": [message_to_json(replace(message, reasoning="")) for message in conversation.messages],
            "temperature": sampling.temperature,
            self._limit_field: sampling.max_tokens,
        }
        # the rest only when it says something: not every upstream knows it
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if request.stop:
            body["stop"] = request.stop
        if conversation.tools:
            body["tools"] = [tool_to_json(tool) for tool in conversation.tools]
        if conversation.forced:
            body["tool_choice"] = _tool_choice(conversation.forced_name)
        if request.json_schema:
            body["response_format"] = _response_format(request.json_schema)
        return body


@dataclass(slots=True)
class _Writing:
    """One answer, written as the model would have."""

    syntax: Syntax
    conversation: Conversation
    finish: FinishReason | None = None
    _thinking: bool = False
    _spoken: bool = False
    _calls: dict[int, ToolCall] = field(default_factory=dict)

    def add(self, said: _Said) -> Iterator[str]:
        """The text of what was said next; calls are kept until they are complete."""
        reasoning = said.reasoning_content or said.reasoning
        if reasoning and self.syntax.thinking is not None and not self._spoken:
            if not self._thinking:
                self._thinking = True
                yield self.syntax.thinking[0]
            yield reasoning
        if said.content:
            yield from self._stop_thinking()
            self._spoken = True
            yield said.content
        for position, part in enumerate(said.tool_calls or ()):
            self._add_call(position if part.index is None else part.index, part)

    def end(self, url: str) -> Iterator[str]:
        """The text of what is left. Raises EngineError if the upstream did not say that the answer is complete."""
        if self.finish is None:
            raise EngineError(f"{url} ended its answer in the middle")
        yield from self._stop_thinking()
        if self._calls:
            calls = [call for _, call in sorted(self._calls.items())]
            yield "\n" * self._spoken + self.syntax.write_calls(calls, self.conversation.tools)

    def _stop_thinking(self) -> Iterator[str]:
        if self._thinking and self.syntax.thinking is not None:
            self._thinking = False
            yield self.syntax.thinking[1]

    def _add_call(self, index: int, part: _Call) -> None:
        function = part.function or _Function()
        call = self._calls.get(index, ToolCall(id="", name="", arguments=""))
        self._calls[index] = ToolCall(
            id=part.id or call.id,
            name=call.name + (function.name or ""),
            arguments=call.arguments + (function.arguments or ""),
        )


def _finish(reason: str | None) -> FinishReason | None:
    if reason is None:
        return None
    return "length" if reason == "length" else "stop"


def _tool_choice(name: str) -> str | dict[str, Any]:
    return {"type": "function", "function": {"name": name}} if name else "required"


def _response_format(json_schema: str) -> dict[str, Any]:
    try:
        schema = json.loads(json_schema)
    except ValueError as error:
        raise InvalidRequest(f"the JSON schema is not JSON: {error}") from error
    if not schema:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


async def _made(engine: OpenAIEngine) -> Engine:
    return engine
