"""A server that speaks vLLM's `/v1/completions`, as a real vLLM 0.32 was recorded to do (tests/engines/golden).

Its routes for weights answer as those of the same vLLM, which dies of weights that do not fit.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from stepwell.engines.base import Generation
from stepwell.errors import InvalidRequest
from stepwell.types import Sampling
from tests.fakes.sampler import Sampled, Sampler, likeliest, truncated, unless_gone


@dataclass
class FakeVLLM:
    """`processed` as with --logprobs-mode processed_logprobs, `development` as with VLLM_SERVER_DEV_MODE=1, `adapters`
    as with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.
    """

    sampler: Sampler
    processed: bool = False
    development: bool = False
    adapters: bool = False
    root: str = "somebody/tiny"
    dead: bool = False
    names: set[str] = field(default_factory=lambda: {"tiny"})
    """Models that may be asked for."""

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/health")(lambda: PlainTextResponse("", status_code=503 if self.dead else 200))
        app.get("/v1/models")(self._models)
        app.post("/v1/completions")(self._complete)
        if self.development:
            app.post("/pause")(self._pause)
            app.post("/resume")(self._resume)
            app.post("/collective_rpc")(self._call)
            app.post("/reset_prefix_cache")(self._reset)
        if self.adapters:
            app.post("/v1/load_lora_adapter")(self._adapt)
        return app

    async def _adapt(self, request: Request) -> Response:
        """One adapter at a time, which is what the policy here can have."""
        body = await request.json()
        name = body["lora_name"]
        if name in self.names and not body.get("load_inplace"):
            return _error(f"The lora adapter '{name}' has already been loaded.")
        self.sampler.adapt(Path(body["lora_path"]))
        self.names.add(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def _pause(self, mode: str = "abort") -> dict[str, str]:
        assert mode in ("keep", "wait"), "what is under way would be aborted"
        if mode == "wait":
            await self.sampler.idle()
        await self.sampler.pause()
        return {"status": "paused"}

    async def _resume(self) -> dict[str, str]:
        self.sampler.resume()
        return {"status": "resumed"}

    async def _call(self, request: Request) -> Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        try:
            self.sampler.reload(Path(body["kwargs"]["weights_path"]))
        except (OSError, RuntimeError) as error:
            self.dead = True
            return _failure(f"Call to collective_rpc method failed: Worker failed with error '{error}'")
        return JSONResponse({"results": [None]})

    async def _reset(self, reset_running_requests: bool = False) -> dict[str, bool]:
        return {"success": reset_running_requests or not self.sampler.running}

    def _models(self) -> dict[str, Any]:
        policy = self.sampler.policy
        model = {"id": policy.name, "object": "model", "owned_by": "vllm", "max_model_len": policy.context_length}
        model["root"] = self.root
        return {"object": "list", "data": [model]}

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        if self.dead:
            return _failure("EngineCore encountered an issue. See stack trace (above) for the root cause.")
        if body["model"] not in self.names:
            return JSONResponse(_problem(f"The model `{body['model']}` does not exist."), status_code=404)
        generation = _generation(body, self.sampler.policy.vocabulary_size)
        refusal = self._refusal(body)
        if refusal is not None:
            return _error(refusal)
        if body.get("stream"):
            return StreamingResponse(self._events(body, generation), media_type="text/event-stream")
        try:
            answer = await unless_gone(request, lambda: self._answer(body, generation))
        except InvalidRequest as error:
            return _error(str(error))
        return JSONResponse(answer)

    def _refusal(self, body: dict[str, Any]) -> str | None:
        policy = self.sampler.policy
        if len(body["prompt"]) + body["max_tokens"] > policy.context_length:
            return f"This model's maximum context length is {policy.context_length} tokens."
        wrong = [i for i in body["prompt"] if i >= policy.vocabulary_size]
        return f"Token id {wrong[0]} is out of vocabulary" if wrong else None

    async def _events(self, body: dict[str, Any], generation: Generation) -> AsyncIterator[str]:
        count = 0
        try:
            async for sampled in self.sampler.sample(generation):
                count += 1
                choice = self._choice(body, [sampled])
                choice["prompt_token_ids"] = body["prompt"] if count == 1 else None
                yield _event(self._frame(choices=[choice]))
        except InvalidRequest as error:
            yield _event(_problem(str(error)))
        if body.get("stream_options", {}).get("include_usage"):
            yield _event(self._frame(choices=[], usage=_usage(body, count)))
        yield "data: [DONE]\n\n"

    async def _answer(self, body: dict[str, Any], generation: Generation) -> dict[str, Any]:
        sampled = [token async for token in self.sampler.sample(generation)]
        choice = self._choice(body, sampled)
        choice["prompt_token_ids"] = body["prompt"]
        choice["prompt_logprobs"] = self._prompt_logprobs(body)
        return self._frame(choices=[choice], usage=_usage(body, len(sampled)))

    def _frame(self, **more: Any) -> dict[str, Any]:
        return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": self.sampler.policy.name, **more}

    def _choice(self, body: dict[str, Any], sampled: list[Sampled]) -> dict[str, Any]:
        return {
            "index": 0,
            "text": "".join(f" {token.token}" for token in sampled),
            "logprobs": self._logprobs(body, sampled),
            "finish_reason": sampled[-1].finish,
            "stop_reason": None,
            "token_ids": [token.token for token in sampled] if body.get("return_token_ids") else None,
        }

    def _logprobs(self, body: dict[str, Any], sampled: list[Sampled]) -> dict[str, Any] | None:
        count = body.get("logprobs")
        if count is None:
            return None
        tops = [self._reported(body, token, count) for token in sampled]
        return {
            "text_offset": [0] * len(sampled),
            "token_logprobs": [top[0][1] for top in tops],
            "tokens": [f"token_id:{token.token}" for token in sampled],
            "top_logprobs": [{f"token_id:{i}": logprob for i, logprob in top} for top in tops],
        }

    def _reported(self, body: dict[str, Any], sampled: Sampled, count: int) -> list[tuple[int, float]]:
        if "structured_outputs" in body:  # of the masked distribution, in both modes
            return [(sampled.token, -0.0)]
        if not self.processed:
            return likeliest(sampled.raw, count, sampled.token)
        found = likeliest(truncated(sampled.logp, body["top_k"], body["top_p"]), count, sampled.token)
        return [(i, max(logprob, -9999.0)) for i, logprob in found]

    def _prompt_logprobs(self, body: dict[str, Any]) -> list[Any] | None:
        count = body.get("prompt_logprobs")
        if count is None:
            return None
        rows = self.sampler.scores(body["prompt"])
        scored = [likeliest(row, count, i) for row, i in zip(rows, body["prompt"][1:], strict=False)]
        return [None, *({str(i): {"logprob": p, "rank": 1, "decoded_token": ""} for i, p in top} for top in scored)]


def _generation(body: dict[str, Any], words: int) -> Generation:
    structured = body.get("structured_outputs", {})
    return Generation(
        prompt_ids=np.array(body["prompt"], np.int32),
        sampling=Sampling(
            temperature=body["temperature"],
            top_p=body.get("top_p", 1.0),
            top_k=body.get("top_k", 0),
            max_tokens=body["max_tokens"],
            seed=body.get("seed"),
        ),
        json_schema=structured.get("json", ""),
        top_logprobs=words,
    )


def _usage(body: dict[str, Any], count: int) -> dict[str, int]:
    prompt = len(body["prompt"])
    return {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count}


def _problem(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}


def _failure(message: str) -> JSONResponse:
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    return JSONResponse({"error": error}, status_code=500)


def _error(message: str) -> JSONResponse:
    return JSONResponse(_problem(message), status_code=400)


def _event(shape: dict[str, Any]) -> str:
    return f"data: {json.dumps(shape)}\n\n"
