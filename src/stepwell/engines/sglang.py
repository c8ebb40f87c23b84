"""SGLang: its native `/generate`, with token ids in and out.

SGLang's log-probabilities are those after temperature and before truncation, which is what is recorded here; only a
server started with SGLANG_RETURN_ORIGINAL_LOGPROB reports those before temperature, which is found out when connecting.
Under a JSON schema they are those after the schema's mask; such responses are scored a second time, as prompts.
"""

from collections.abc import AsyncGenerator, Sequence
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
from stepwell.engines.upstream import Upstream
from stepwell.engines.weights import Layout, holds_adapter
from stepwell.errors import ConfigError, ContextOverflow, EngineError, InvalidRequest, StepwellError
from stepwell.rendering.renderer import Renderer
from stepwell.types import FinishReason

_PATH: Final = "/generate"
_UPDATE_PATH: Final = "/update_weights_from_disk"
_COLDEST: Final = 1e-5
"""Logits divided by less than this could overflow."""


class SGLangConfig(UpdatableConfig):
    """SGLang's server. Start it with --incremental-streaming-output: else each event repeats all tokens before it."""

    async def connect(self, renderer: Renderer, syntax: Syntax) -> Engine:  # noqa: ARG002 - it takes and gives ids
        """See `ServedConfig`."""
        return await replicated(SGLangEngine.connect(url, self, sorted(renderer.eos_ids)) for url in self.urls)


_Scored = tuple[float | None, int, str | None]
"""(log-probability, id, text), as SGLang writes them."""


class _Finish(msgspec.Struct):
    type: str
    message: str = ""
    status_code: int | None = None


class _Meta(msgspec.Struct):
    completion_tokens: int
    finish_reason: _Finish | None = None
    output_token_logprobs: list[_Scored] | None = None
    output_top_logprobs: list[list[_Scored] | None] | None = None
    input_token_logprobs: list[_Scored] | None = None
    input_top_logprobs: list[list[_Scored] | None] | None = None


class _Event(msgspec.Struct):
    """A whole answer, or one event of a stream."""

    meta_info: _Meta | None = None
    error: Problem | None = None


class _ServerInfo(msgspec.Struct):
    enable_deterministic_inference: bool = False
    model_path: str = ""


class _Updated(msgspec.Struct):
    success: bool
    message: str = ""


_EVENTS: Final = msgspec.json.Decoder(_Event)
_UPDATED: Final = msgspec.json.Decoder(_Updated)


class SGLangEngine(UpdatableEngine):
    """Samples on an SGLang server; meets `stepwell.engines.base.Engine`."""

    START_WITH = "a version that has /update_weights_from_disk"

    def __init__(
        self,
        upstream: Upstream,
        *,
        model: str,
        context_length: int,
        original_logprobs: bool,
        seeded: bool,
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
        self._original = original_logprobs
        self._seeded = seeded
        self._eos_ids = list(eos_ids)

    @classmethod
    async def connect(cls, url: str, config: SGLangConfig, eos_ids: Sequence[int]) -> "SGLangEngine":
        """The engine of the server at `url`; `eos_ids` end a response, whatever the server believes.

        Raises:
            ConfigError: the server does not offer the model, or is not SGLang.
            EngineError: it cannot be reached.
        """
        upstream = Upstream(url, config)
        try:
            served = await served_model(upstream, config.model)
            info = await upstream.get("/get_server_info", _ServerInfo)
            original = await _reports_original(upstream)
        finally:
            await upstream.aclose()  # requests may come from another event loop than this one
        return cls(
            upstream,
            model=served.id,
            context_length=served.context_length,
            original_logprobs=original,
            seeded=info.enable_deterministic_inference,
            eos_ids=eos_ids,
            policy_version=config.policy_version,
            under_way=config.under_way,
            root=info.model_path,
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
        answering = Answer(self)
        with await self._upstream.events(_PATH, self._body(request, room) | {"stream": True}) as events:
            while payloads := await events.payloads():
                failure = self._read(answering, payloads)
                if (chunk := answering.new()) is not None:
                    yield chunk
                if failure is not None:
                    raise failure
        yield answering.end()

    def refuse(self, folder: Path, layout: Layout) -> None:
        """See `UpdatableEngine`."""
        if holds_adapter(folder):
            raise ConfigError("SGLang is given whole models only: write one with export_model, which merges adapters")
        super().refuse(folder, layout)

    async def pause(self, under_way: UnderWay) -> None:
        """See `UpdatableEngine`: requests that continue go back into the queue, and their prompts are computed again.

        For those that are to finish nothing need be done: an update that finds the server running waits for them.
        """
        if under_way == "continue":
            await self.told("/pause_generation", {"mode": "retract"})

    async def replace(self, weights: Weights) -> None:
        """See `UpdatableEngine`."""
        order = {"model_path": str(weights.folder.absolute()), "flush_cache": True}
        updated = await self._upstream.post(_UPDATE_PATH, order, _UPDATED)
        if not updated.success:
            raise EngineError(updated.message)

    async def forget(self) -> None:
        """The update has flushed the cache."""

    async def resume(self) -> None:
        """See `UpdatableEngine`."""
        await self.told("/continue_generation", {})

    def _read(self, answering: Answer, payloads: Sequence[bytes]) -> StepwellError | None:
        """Add events to the answer; gives the failure that one of them is, so that those before it are not lost."""
        try:
            for payload in payloads:
                if payload != b"[DONE]":
                    self._take(answering, self._upstream.decoded(payload, _EVENTS))
        except StepwellError as error:
            return error
        return None

    async def _whole(self, request: Generation, room: int) -> Chunk:
        answering = Answer(self)
        self._take(answering, await self._upstream.post(_PATH, self._body(request, room), _EVENTS))
        return answering.end()

    async def _constrained(self, request: Generation, room: int) -> Chunk:
        """Sample under the schema's mask, then score the response without it."""
        if room < 2:
            raise ContextOverflow("the prompt leaves no room to score what is sampled under a JSON schema")
        version = self.policy_version
        sampled = await self._whole(request, room - 1)
        meta = self._meta(await self._upstream.post(_PATH, self._scoring(request, sampled), _EVENTS))
        count = len(sampled.token_ids)
        scores = (meta.input_token_logprobs or [])[-count:]
        if self.policy_version != version or tuple(i for _, i, _ in scores) != sampled.token_ids:
            raise EngineError("the response could not be scored: the weights changed, or the server sent no scores")
        tops = (meta.input_top_logprobs or [])[-count:] if request.top_logprobs else []
        return replace(sampled, logprobs=self._floats(scores), top=tuple(_top(found) for found in tops))

    def _meta(self, event: _Event) -> _Meta:
        if event.error is not None:
            raise event.error.explained(self.url)
        if event.meta_info is None:
            raise EngineError(f"{self.url} sent an answer without meta_info: is it SGLang's /generate?")
        finish = event.meta_info.finish_reason
        if finish is not None and finish.type == "abort":
            raise Problem(finish.message or "the request was aborted", finish.status_code).explained(self.url)
        return event.meta_info

    def _take(self, answering: Answer, event: _Event) -> None:
        """Add what is new in an event, which has either all tokens so far or only the new ones (see `SGLangConfig`)."""
        meta = self._meta(event)
        answering.expected = meta.completion_tokens
        scored = meta.output_token_logprobs or []
        known = answering.count if len(scored) == meta.completion_tokens else 0
        new = scored[known:]
        if len(new) != meta.completion_tokens - answering.count:
            counts = f"{len(scored)} log-probabilities for {meta.completion_tokens} tokens"
            raise EngineError(f"{self.url} sent {counts}, {answering.count} of them known before")
        tops = [_top(found) for found in (meta.output_top_logprobs or [])[known:]]
        answering.add([i for _, i, _ in new], self._floats(new), tops, _finish(meta.finish_reason))

    def _floats(self, scored: Sequence[_Scored]) -> tuple[float, ...]:
        logprobs = tuple(logprob for logprob, _, _ in scored if logprob is not None)
        if len(logprobs) != len(scored):
            raise EngineError(f"{self.url} sent a token without its log-probability")
        return logprobs

    def _body(self, request: Generation, room: int) -> dict[str, Any]:
        sampling = request.sampling
        wishes: dict[str, Any] = NEUTRAL | {
            "max_new_tokens": room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop_token_ids": self._eos_ids,
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        if sampling.seed is not None:
            wishes["sampling_seed"] = sampling.seed
        if request.stop:
            wishes["stop"] = request.stop
        if request.json_schema:
            wishes["json_schema"] = request.json_schema
        return {
            "input_ids": request.prompt_ids.tolist(),
            "sampling_params": wishes,
            "return_logprob": True,
            "top_logprobs_num": request.top_logprobs,
        }

    def _scoring(self, request: Generation, sampled: Chunk) -> dict[str, Any]:
        return {
            "input_ids": [*request.prompt_ids.tolist(), *sampled.token_ids],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": len(request.prompt_ids) - 1,
            "top_logprobs_num": request.top_logprobs,
        }

    def _refuse_inexact(self, request: Generation) -> None:
        """Whatever the server would answer with log-probabilities of another distribution, or not honour."""
        temperature = request.sampling.temperature
        if 0 < temperature < _COLDEST:
            raise InvalidRequest(f"temperature must be 0, which is greedy, or at least {_COLDEST}")
        if request.json_schema and temperature not in (0, 1):
            raise InvalidRequest("with a JSON schema, SGLang can tell log-probabilities only at temperature 0 or 1")
        if self._original and temperature not in (0, 1):
            raise InvalidRequest(
                "this SGLang reports log-probabilities before temperature: use temperature 0 or 1, or start the server "
                "without SGLANG_RETURN_ORIGINAL_LOGPROB"
            )
        if request.sampling.seed is not None and not self._seeded:
            raise InvalidRequest("this SGLang ignores seeds; start it with --enable-deterministic-inference")


def _top(found: Sequence[_Scored] | None) -> Top:
    return tuple((i, logprob) for logprob, i, _ in found or () if logprob is not None)


def _finish(reason: _Finish | None) -> FinishReason | None:
    if reason is None:
        return None
    return "length" if reason.type == "length" else "stop"


async def _reports_original(upstream: Upstream) -> bool:
    """Whether log-probabilities stay as they are when the temperature changes."""
    likeliest = []
    for temperature in (1.0, 2.0):
        wishes = NEUTRAL | {"max_new_tokens": 1, "temperature": temperature, "top_p": 1.0, "top_k": -1}
        body = {"input_ids": [1, 2, 3], "sampling_params": wishes, "return_logprob": True, "top_logprobs_num": 1}
        event = await upstream.post(_PATH, body, _EVENTS)
        tops = (event.meta_info.output_top_logprobs or [[]]) if event.meta_info else [[]]
        best = _top(tops[0])
        if not best:
            raise ConfigError(f"{upstream.url} sends no log-probabilities: is it SGLang's server?")
        likeliest.append(best[0][1])
    return abs(likeliest[0] - likeliest[1]) <= NOISE
