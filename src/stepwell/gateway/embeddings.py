"""Embeddings: not made here, but passed through to a server that makes them, so that agents need one base URL only."""

from typing import Final

import aiohttp
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepwell.errors import EngineError, EngineTimeout, InvalidRequest, StepwellError
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.gate import Gate
from stepwell.gateway.problems import problem_json, problem_of
from stepwell.gateway.transport import CLIENT_CLOSED, ClientGone, read_body

_TIMEOUT: Final = aiohttp.ClientTimeout(total=120, connect=10)


class EmbeddingsEndpoint:
    """`POST /embeddings`; an ASGI application. Body and answer go through as they are."""

    def __init__(self, config: GatewayConfig, gate: Gate) -> None:
        """Pass through to `config.embeddings_url`, whatever `gate` lets through."""
        self._config = config
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._passed(Request(scope, receive))
        except ClientGone:
            response = Response(status_code=CLIENT_CLOSED)
        except StepwellError as error:
            problem = problem_of(error)
            response = Response(problem_json(problem), problem.status, media_type="application/json")
        await response(scope, receive, send)

    async def _passed(self, request: Request) -> Response:
        config = self._config
        if not config.embeddings_url:
            raise InvalidRequest(
                "no embeddings are served here; set gateway.embeddings_url to a server that makes them"
            )
        body = await read_body(request, config.max_body_bytes, config.body_seconds)
        async with self._gate.passing(request.scope["state"]["principal"]):
            return await self._made(body)

    async def _made(self, body: bytes) -> Response:
        config = self._config
        headers = {"content-type": "application/json"}
        if config.embeddings_key:
            headers["authorization"] = f"Bearer {config.embeddings_key}"
        url = config.embeddings_url.rstrip("/") + "/embeddings"
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as http,
                http.post(url, data=body, headers=headers) as answer,
            ):
                return Response(await answer.read(), answer.status, media_type=answer.content_type)
        except TimeoutError as error:
            raise EngineTimeout("the embeddings server did not answer in time; try again") from error
        except aiohttp.ClientError as error:
            raise EngineError(f"the embeddings server cannot be reached: {error}") from error
