"""A server that judges: OpenAI's chat completions, whose answers a test decides."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class FakeJudge:
    """Answers each prompt with what `says` makes of it; an integer is the HTTP status of a refusal.

    It answers only when `together` questions are there.
    """

    def __init__(self, says: Callable[[str], str | int], together: int = 1) -> None:
        self.says = says
        self.at_once = self.most_at_once = 0
        self._all_there = asyncio.Barrier(together)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def prompts(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.asked]

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])

    async def _complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self._all_there.wait()
        self.at_once -= 1
        said = self.says(body["messages"][-1]["content"])
        if isinstance(said, int):
            return JSONResponse({"error": {"message": "not now"}}, status_code=said)
        message = {"role": "assistant", "content": said}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
