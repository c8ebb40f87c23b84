"""Embeddings: not made here, but passed through to a server that makes them, so that agents need one base URL only."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepwell.engines.http import HttpClient
from stepwell.errors import InvalidRequest, StepwellError
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.gate import Gate
from stepwell.gateway.problems import problem_json, problem_of
from stepwell.gateway.transport import CLIENT_CLOSED, ClientGone, read_body

_PATIENCE: Final = 120.0
"""Seconds in which a server of embeddings should have answered."""


class EmbeddingsEndpoint:
    """`POST /embeddings`; an ASGI application. Body and answer go through as they are."""

    def __init__(self, config: GatewayConfig, gate: Gate) -> None:
        """Pass through to `config.embeddings_url`, whatever `gate` lets through. Raises ConfigError if it is no URL."""
        self._config = config
        self._gate = gate
        headers = {"Content-Type": "application/json"}
        if config.embeddings_key:
            headers["Authorization"] = f"Bearer {config.embeddings_key}"
        url = config.embeddings_url.rstrip("/")
        self._http = HttpClient(url, headers, idle_timeout=_PATIENCE) if url else None

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
        if self._http is None:
            raise InvalidRequest(
                "no embeddings are served here; set gateway.embeddings_url to a server that makes them"
            )
        body = await read_body(request, self._config.max_body_bytes, self._config.body_seconds)
        async with self._gate.passing(request.scope["state"]["principal"]):
            with await self._http.request("POST", "/embeddings", body) as answer:
                return Response(await answer.read(), answer.status, media_type=answer.kind or None)
