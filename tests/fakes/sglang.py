"""A server that speaks SGLang's `/generate` as its documentation and its source describe it.

SGLang itself needs a GPU, so unlike vLLM's this wire format was not recorded from a live server.
"""

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from torch import Tensor

from stepwell.engines.base import Generation
from stepwell.errors import InvalidRequest
from stepwell.types import Sampling
from tests.fakes.sampler import Sampled, Sampler, unless_gone


@dataclass
class FakeSGLang:
    """`incremental` as with --incremental-streaming-output, `original` as with SGLANG_RETURN_ORIGINAL_LOGPROB."""

    sampler: Sampler
    incremental: bool = True
    original: bool = False
    deterministic: bool = True
    updates: bool = True
    """Whether it is of a version that takes weights."""
    root: str = "somebody/tiny"

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/health")(lambda: PlainTextResponse(""))
        app.get("/v1/models")(self._models)
        app.get("/get_server_info")(self._info)
        app.post("/generate")(self._generate)
        if self.updates:
            app.post("/pause_generation")(self._pause)
            app.post("/continue_generation")(self._resume)
            app.post("/update_weights_from_disk")(self._update)
        return app

    def _info(self) -> dict[str, Any]:
        return {"enable_deterministic_inference": self.deterministic, "version": "0.5", "model_path": self.root}

    async def _pause(self, request: Request) -> dict[str, str]:
        assert (await request.json())["mode"] == "retract", (
            "the cache could not be flushed, or requests would be aborted"
        )
        await self.sampler.pause()
        return {"message": "Generation paused successfully.", "status": "ok"}

    async def _resume(self) -> dict[str, str]:
        self.sampler.resume()
        return {"message": "Generation continued successfully.", "status": "ok"}

    async def _update(self, request: Request) -> Response:
        """Of a server that is not paused, once no request is under way."""
        folder = Path((await request.json())["model_path"])
        if not self.sampler.paused:
            await self.sampler.idle()
        try:
            self.sampler.reload(folder)
        except OSError as error:
            return self._updated(False, f"Failed to get weights iterator: {error}.")
        except RuntimeError as error:
            return self._updated(False, f"Failed to update weights: {error}.\nRolling back to original weights.")
        return self._updated(True, "Succeeded to update model weights.")

    def _updated(self, success: bool, message: str) -> Response:
        told = {"success": success, "message": message, "num_paused_requests": 0}
        return JSONResponse(told, status_code=200 if success else 400)

    def _models(self) -> dict[str, Any]:
        policy = self.sampler.policy
        model = {"id": policy.name, "object": "model", "owned_by": "sglang", "max_model_len": policy.context_length}
        return {"object": "list", "data": [model]}

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        generation = _generation(body, self.sampler.policy.vocabulary_size)
        if body.get("stream"):
            return StreamingResponse(self._events(body, generation), media_type="text/event-stream")
        try:
            answer = await unless_gone(request, lambda: self._answer(body, generation))
        except InvalidRequest as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=400)
        return JSONResponse(answer)

    async def _events(self, body: dict[str, Any], generation: Generation) -> AsyncIterator[str]:
        sampled: list[Sampled] = []
        try:
            async for token in self.sampler.sample(generation):
                sampled.append(token)
                told = sampled[-1:] if self.incremental else sampled
                yield f"data: {json.dumps(self._frame(body, told, len(sampled)))}\n\n"
        except InvalidRequest as error:
            yield f"data: {json.dumps({'error': {'message': str(error), 'code': 400}})}\n\n"
        yield "data: [DONE]\n\n"

    async def _answer(self, body: dict[str, Any], generation: Generation) -> dict[str, Any]:
        sampled = [token async for token in self.sampler.sample(generation)]
        frame = self._frame(body, sampled, len(sampled))
        start = body.get("logprob_start_len", -1)
        if start >= 0:
            rows = self.sampler.scores(body["input_ids"])[start:]
            ids = body["input_ids"][start:]
            scored = [[float(row[i]), i, None] for row, i in zip(rows, ids[1:], strict=False)]
            frame["meta_info"]["input_token_logprobs"] = [[None, ids[0], None], *scored]
            frame["meta_info"]["input_top_logprobs"] = [None, *_tops(rows[:-1], body["top_logprobs_num"])]
        return frame

    def _frame(self, body: dict[str, Any], told: list[Sampled], count: int) -> dict[str, Any]:
        finish = told[-1].finish
        kinds = {"stop": {"type": "stop", "matched": told[-1].token}, "length": {"type": "length", "length": count}}
        meta: dict[str, Any] = {
            "id": "1",
            "finish_reason": kinds[finish] if finish else None,
            "prompt_tokens": len(body["input_ids"]),
            "weight_version": "default",
            "completion_tokens": count,
            "cached_tokens": 0,
        }
        if body.get("return_logprob"):
            constrained = "json_schema" in body["sampling_params"]
            rows = [token.raw if self.original else token.logp for token in told]
            chosen = [0.0 if constrained else float(row[t.token]) for row, t in zip(rows, told, strict=True)]
            meta["output_token_logprobs"] = [[p, t.token, None] for p, t in zip(chosen, told, strict=True)]
            if body["top_logprobs_num"]:
                meta["output_top_logprobs"] = _tops(rows, body["top_logprobs_num"])
        return {"text": "", "output_ids": [token.token for token in told], "meta_info": meta}


def _tops(rows: Iterable[Tensor], count: int) -> list[list[list[Any]]]:
    best = [row.topk(count) for row in rows]
    pairs = [zip(b.indices.tolist(), b.values.tolist(), strict=True) for b in best]
    return [[[logprob, i, None] for i, logprob in row] for row in pairs]


def _generation(body: dict[str, Any], words: int) -> Generation:
    wishes = body["sampling_params"]
    return Generation(
        prompt_ids=np.array(body["input_ids"], np.int32),
        sampling=Sampling(
            temperature=wishes["temperature"],
            top_p=wishes.get("top_p", 1.0),
            top_k=max(wishes.get("top_k", -1), 0),
            max_tokens=wishes["max_new_tokens"],
            seed=wishes.get("sampling_seed"),
        ),
        json_schema=wishes.get("json_schema", ""),
        top_logprobs=words,
    )
