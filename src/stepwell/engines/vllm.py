"""vLLM: its OpenAI server's `/v1/completions`, with token ids in and out.

vLLM reports log-probabilities in one of two ways, which is found out when connecting. `raw_logprobs`, its default, are
those before temperature; `processed_logprobs` are those after temperature and truncation. What is recorded here is
between the two, so each allows what it can tell exactly and the rest is refused. Under a JSON schema both are those
after the schema's mask; such responses are scored a second time, as prompts, which no mask touches.
"""

from collections.abc import AsyncGenerator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stepwell.engines.base import Chunk, Engine, Generation, Weights
from stepwell.engines.replicas import replicated
from stepwell.engines.served import (
    NEUTRAL,
    NOISE,
    Answer,
    Problem,
    Syntax,
    Top,
    room_for,
    served_model,
    split_by_version,
)
from stepwell.engines.updating import UnderWay, UpdatableConfig, UpdatableEngine
from stepwell.engines.upstream import Refused, Upstream
from stepwell.engines.weights import OUTPUT_LAYER, Layout, holds_adapter
from stepwell.errors import ConfigError, ContextOverflow, EngineError, InvalidRequest, StepwellError
from stepwell.rendering.renderer import Renderer
from stepwell.types import FinishReason

_PATH: Final = "/v1/completions"
_ADAPTER: Final = "stepwell-adapter"
"""Under which a published adapter is known to the server."""
_COLDEST: Final = 0.01
"""vLLM silently raises temperatures between 0 and this."""
_TOO_OLD: Final = "sends no token ids: it needs vLLM 0.10.2 or later, which knows return_token_ids"


class VLLMConfig(UpdatableConfig):
    """vLLM's OpenAI server (`vllm serve`), 0.10.2 or later."""

    async def connect(self, renderer: Renderer, syntax: Syntax) -> Engine:  # noqa: ARG002 - it takes and gives ids
        """See `ServedConfig`."""
        return await replicated(VLLMEngine.connect(url, self, sorted(renderer.eos_ids)) for url in self.urls)


class _Logprobs(msgspec.Struct, gc=False):
    token_logprobs: list[float]
    top_logprobs: msgspec.Raw = msgspec.Raw(b"[]")
    """Of the sampled token at least, which nobody looks at unless it was asked for: so not decoded yet."""


class _Scored(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct, gc=False):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[dict[str, _Scored] | None] | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Event(msgspec.Struct, gc=False):
    """A whole answer, or one event of a stream."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Problem | None = None


_EVENTS: Final = msgspec.json.Decoder(_Event)
_TOPS: Final = msgspec.json.Decoder(list[dict[str, float]])


class _Reset(msgspec.Struct):
    success: bool


_RESET: Final = msgspec.json.Decoder(_Reset)


class VLLMEngine(UpdatableEngine):
    """Samples on a vLLM server; meets `stepwell.engines.base.Engine`."""

    START_WITH = "VLLM_SERVER_DEV_MODE=1 in its environment"

    def __init__(
        self,
        upstream: Upstream,
        *,
        model: str,
        context_length: int,
        processed_logprobs: bool,
        eos_ids: Sequence[int],
        policy_version: int = 0,
        under_way: UnderWay = "continue",
        root: str = "",
    ) -> None:
        """Use `connect`, which asks the server for its facts."""
        super().__init__(
            upstream,
            model=model,
            context_length=context_length,
            policy_version=policy_version,
            under_way=under_way,
            root=root,
        )
        self._processed = processed_logprobs
        self._eos_ids = list(eos_ids)
        self._asked = model
        """The model that requests name: the one that is served, or the adapter to it."""

    @classmethod
    async def connect(cls, url: str, config: VLLMConfig, eos_ids: Sequence[int]) -> "VLLMEngine":
        """The engine of the server at `url`; `eos_ids` end a response, whatever the server believes.

        Raises:
            ConfigError: the server does not offer the model, or is not vLLM, or is too old.
            EngineError: it cannot be reached.
        """
        upstream = Upstream(url, config)
        try:
            served = await served_model(upstream, config.model)
            processed = await _reports_processed(upstream, served.id)
        finally:
            await upstream.aclose()  # requests may come from another event loop than this one
        return cls(
            upstream,
            model=served.id,
            context_length=served.context_length,
            processed_logprobs=processed,
            eos_ids=eos_ids,
            policy_version=config.policy_version,
            under_way=config.under_way,
            root=served.root,
        )

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        """Stream one completion (see the protocol); under a JSON schema it comes as one chunk."""
        room = room_for(request, self.context_length)
        self._refuse_inexact(request)
        if request.json_schema or not request.stream:
            version = self.policy_version
            answer = await (self._constrained(request, room) if request.json_schema else self._whole(request, room))
            for part in split_by_version(answer, version):
                yield part
            return
        body = self._body(request, room) | {"stream": True, "stream_options": {"include_usage": True}}
        answering = Answer(self)
        with await self._upstream.events(_PATH, body) as events:
            while payloads := await events.payloads():
                failure = self._read(answering, payloads, request.top_logprobs)
                if (chunk := answering.new()) is not None:
                    yield chunk
                if failure is not None:
                    raise failure
        yield answering.end()

    def refuse(self, folder: Path, layout: Layout) -> None:
        """See `UpdatableEngine`."""
        if OUTPUT_LAYER not in layout and not holds_adapter(folder):
            raise ConfigError(
                f"the checkpoint has no {OUTPUT_LAYER}: vLLM would silently keep its old output layer when it loads "
                "tied embeddings; write it with export_model(..., untied=True)"
            )
        super().refuse(folder, layout)

    def manner(self, weights: Weights) -> UnderWay:
        """See `UpdatableEngine`: a request keeps the adapter that it began with, or that it began without one."""
        adapted = self._asked != self.model
        return super().manner(weights) if adapted == holds_adapter(weights.folder) else "finish"

    async def pause(self, under_way: UnderWay) -> None:
        """See `UpdatableEngine`: requests that continue are frozen in their places."""
        await self.told(f"/pause?mode={'keep' if under_way == 'continue' else 'wait'}", {})

    async def replace(self, weights: Weights) -> None:
        """See `UpdatableEngine`."""
        if holds_adapter(weights.folder):
            await self._adapt(weights)
            return
        arguments = {"weights_path": str(weights.folder.absolute())}
        await self._upstream.tell("/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
        self._asked = self.model

    async def _adapt(self, weights: Weights) -> None:
        """Have an adapter loaded in the place of the last one, and ask for it from now on."""
        adapter = {"lora_name": _ADAPTER, "lora_path": str(weights.folder.absolute()), "load_inplace": True}
        try:
            await self._upstream.tell("/v1/load_lora_adapter", adapter)
        except Refused as error:
            remedy = "--enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
            raise ConfigError(f"{self.url} takes no adapters; start it with {remedy}: {error}") from error
        self._asked = _ADAPTER

    async def forget(self) -> None:
        """See `UpdatableEngine`: the prompts of requests that continue are computed again, by the new weights."""
        reset = await self._upstream.post("/reset_prefix_cache?reset_running_requests=true", {}, _RESET)
        if not reset.success:
            raise EngineError("it could not reset its prefix cache")

    async def resume(self) -> None:
        """See `UpdatableEngine`."""
        await self.told("/resume", {})

    def _read(self, answering: Answer, payloads: Sequence[bytes], top: int) -> StepwellError | None:
        """Add events to the answer; gives the failure that one of them is, so that those before it are not lost."""
        try:
            for payload in payloads:
                if payload != b"[DONE]":
                    self._take(answering, self._upstream.decoded(payload, _EVENTS), top)
        except StepwellError as error:
            return error
        return None

    async def _whole(self, request: Generation, room: int) -> Chunk:
        event = await self._upstream.post(_PATH, self._body(request, room), _EVENTS)
        answering = Answer(self)
        self._take(answering, event, request.top_logprobs)
        return answering.end()

    async def _constrained(self, request: Generation, room: int) -> Chunk:
        """Sample under the schema's mask, then score the response without it."""
        if room < 2:
            raise ContextOverflow("the prompt leaves no room to score what is sampled under a JSON schema")
        version = self.policy_version
        sampled = await self._whole(request, room - 1)
        body = self._scoring(request, sampled)
        event = await self._upstream.post(_PATH, body, _EVENTS)
        scores = (event.choices[0].prompt_logprobs or []) if event.choices else []
        scores = scores[len(request.prompt_ids) :]
        if self.policy_version != version or len(scores) != len(sampled.token_ids):
            raise EngineError("the response could not be scored: the weights changed, or the server sent no scores")
        own = [(scored or {}).get(str(token)) for token, scored in zip(sampled.token_ids, scores, strict=True)]
        if None in own:
            raise EngineError(f"{self.url} scored other tokens than it sampled")
        tops = [
            _best({int(i): s.logprob for i, s in (scored or {}).items()}, request.top_logprobs) for scored in scores
        ]
        return replace(
            sampled,
            logprobs=tuple(score.logprob for score in own if score),
            top=tuple(tops) if request.top_logprobs else (),
        )

    def _take(self, answering: Answer, event: _Event, top: int) -> None:
        if event.error is not None:
            raise event.error.explained(self.url)
        if event.usage is not None:
            answering.expected = event.usage.completion_tokens
        if not event.choices:
            return
        choice = event.choices[0]
        if choice.token_ids is None:
            raise EngineError(f"{self.url} {_TOO_OLD}")
        logprobs = choice.logprobs or _Logprobs([])
        tops = [_best(_by_id(found), top) for found in self._tops(logprobs)] if top else ()
        finish = None if choice.finish_reason is None else _finish(choice.finish_reason)
        answering.add(choice.token_ids, logprobs.token_logprobs, tops, finish)

    def _tops(self, logprobs: _Logprobs) -> list[dict[str, float]]:
        return self._upstream.decoded(bytes(logprobs.top_logprobs), _TOPS)

    def _body(self, request: Generation, room: int) -> dict[str, Any]:
        sampling = request.sampling
        body = NEUTRAL | {
            "model": self._asked,
            "prompt": request.prompt_ids.tolist(),
            "max_tokens": room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "logprobs": request.top_logprobs,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stop_token_ids": self._eos_ids,
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if request.stop:
            body["stop"] = request.stop
        if request.json_schema:
            body["structured_outputs"] = {"json": request.json_schema}
        return body

    def _scoring(self, request: Generation, sampled: Chunk) -> dict[str, Any]:
        return {
            "model": self._asked,
            "prompt": [*request.prompt_ids.tolist(), *sampled.token_ids],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": request.top_logprobs,
        }

    def _refuse_inexact(self, request: Generation) -> None:
        """Whatever the server would answer with log-probabilities of another distribution than is recorded."""
        sampling = request.sampling
        if 0 < sampling.temperature < _COLDEST:
            raise InvalidRequest(f"temperature must be 0, which is greedy, or at least {_COLDEST}")
        if request.json_schema:
            if sampling.temperature not in (0, 1):
                raise InvalidRequest("with a JSON schema, vLLM can tell log-probabilities only at temperature 0 or 1")
        elif self._processed:
            if sampling.top_p < 1 or sampling.top_k:
                raise InvalidRequest(
                    "this vLLM reports log-probabilities after truncation: use top_p 1 and top_k 0, or start the "
                    "server without --logprobs-mode processed_logprobs and use temperature 0 or 1"
                )
        elif sampling.temperature not in (0, 1):
            raise InvalidRequest(
                "this vLLM reports log-probabilities before temperature: use temperature 0 or 1, or start the server "
                "with --logprobs-mode processed_logprobs"
            )


def _by_id(tokens: dict[str, float]) -> dict[int, float]:
    return {int(token.removeprefix("token_id:")): logprob for token, logprob in tokens.items()}


def _best(logprobs: dict[int, float], count: int) -> Top:
    """The `count` likeliest; servers add the sampled token to them."""
    return tuple(sorted(logprobs.items(), key=itemgetter(1), reverse=True)[:count])


def _finish(reason: str) -> FinishReason:
    if reason in ("abort", "error"):
        raise EngineError(f"vLLM gave up the request ({reason})")
    return "length" if reason == "length" else "stop"


async def _reports_processed(upstream: Upstream, model: str) -> bool:
    """Whether log-probabilities move with temperature. Raises ConfigError for a server that cannot be used."""
    likeliest = []
    for temperature in (1.0, 2.0):
        body = NEUTRAL | {"model": model, "prompt": [1, 2, 3], "max_tokens": 1, "temperature": temperature}
        body |= {"top_p": 1.0, "top_k": 0, "logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True}
        event = await upstream.post(_PATH, body, _EVENTS)
        choice = event.choices[0] if event.choices else _Choice()
        if choice.token_ids is None:
            raise ConfigError(f"{upstream.url} {_TOO_OLD}")
        tops = upstream.decoded(bytes(choice.logprobs.top_logprobs), _TOPS) if choice.logprobs else []
        if not tops:
            raise ConfigError(f"{upstream.url} sends no log-probabilities; start it with --max-logprobs of at least 1")
        likeliest.append(max(tops[0].values()))
    if max(likeliest) > NOISE:
        raise ConfigError(f"{upstream.url} reports logits; start it with --logprobs-mode processed_logprobs")
    return abs(likeliest[0] - likeliest[1]) > NOISE
