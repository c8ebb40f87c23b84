"""The gateway as a web application: routes, and errors in one shape. Everything it needs is handed in."""

import inspect
from itertools import product
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from stepwell.engines.base import Engine
from stepwell.errors import InvalidRequest, StepwellError
from stepwell.gateway.admission import Admission
from stepwell.gateway.calls import CallEndpoint, CountEndpoint, Services
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.dialects import COUNTS, DIALECTS
from stepwell.gateway.dialects.models import model_entry, model_json, models_json
from stepwell.gateway.dispatch import Dispatch
from stepwell.gateway.embeddings import EmbeddingsEndpoint
from stepwell.gateway.exchange import Exchange
from stepwell.gateway.gate import Gate
from stepwell.gateway.guard import Guard
from stepwell.gateway.ingest import Ingest
from stepwell.gateway.ingest.context import Context
from stepwell.gateway.ingest.feed import Feed
from stepwell.gateway.keys import KeyRing
from stepwell.gateway.observe import Meters
from stepwell.gateway.openapi import documented
from stepwell.gateway.operations import Operations
from stepwell.gateway.problems import Problem, logged, problem_json, problem_response
from stepwell.gateway.producer import producing
from stepwell.gateway.publishing import Publishing
from stepwell.gateway.recall import Recall
from stepwell.gateway.redact import Redactor
from stepwell.gateway.sessions import Sessions
from stepwell.pool.base import Pool
from stepwell.rendering.renderer import Renderer

# Clients differ in whether they add /v1 to the base URL, and some add it to one that has it.
_VERSIONS: Final = ("/v1", "", "/v1/v1")
_BASES: Final = [start + end for start, end in product(("", "/t/{trajectory}"), _VERSIONS)]

# FastAPI, since it has telemetry, would make spans of its own beside ours, and look for a provider on each request.
_TELEMETRY: Final = {"telemetry": {"tracing": False, "metrics": False, "logs": False}}
_OWN_SPANS: Final[dict[str, Any]] = _TELEMETRY if "telemetry" in inspect.signature(FastAPI.__init__).parameters else {}


def create_app(
    engine: Engine, renderer: Renderer, pool: Pool, config: GatewayConfig | None = None, keys: KeyRing | None = None
) -> FastAPI:
    """The gateway in front of `engine`, recording into `pool`, of which it is a producer; it closes neither.

    Args:
        engine: Samples.
        renderer: Of the engine's model.
        pool: Where every step goes.
        config: Settings; None for the defaults.
        keys: Who may do what; None lets everybody do everything, which is for loopback only.

    Routes: each dialect's path, below `/`, `/v1` and `/t/{trajectory}/v1`; those of `Ingest` and of `Operations`.
    """
    config = config or GatewayConfig()
    recall = Recall(pool, {dialect.name: dialect for dialect in DIALECTS})
    admission = Admission(pool, config.admission)
    sessions = Sessions(pool, renderer, recall, admission, config.max_sessions, config.session_bytes)
    gate = Gate(config.max_calls, config.pause_seconds)
    meters = Meters(engine, gate)
    redact = Redactor(config.redact)
    exchange = Exchange(engine, renderer, pool, sessions, recall, config, redact, meters.stored, meters.stored_failed)
    services = Services(exchange=exchange, gate=gate, meters=meters, redact=redact, config=config)
    context = Context(
        pool=pool, model=engine.model, vocabulary=renderer.vocabulary_size, feedback=config.feedback_reward
    )
    ingest = Ingest(context, sessions, admission, meters, config, keys)
    app = _Gateway(services, ingest, pool, keys)
    _add_calls(app, services)
    _add_models(app, exchange, engine)
    app.include_router(ingest.router())
    app.include_router(Feed(pool, config).router())
    app.include_router(Operations(engine, pool, gate, meters).router())
    app.include_router(Publishing(engine, gate).router())
    app.openapi = documented(app)  # type: ignore[method-assign]  # the framework's own way to replace it
    app.state.meters = meters
    app.add_exception_handler(StepwellError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_middleware(_LastResort)
    return app


class _Gateway(FastAPI):
    """FastAPI behind the guard; calls of agents and submitted items pass by it, because what it does around an endpoint
    costs more than all that is done here."""

    def __init__(self, services: Services, ingest: Ingest, pool: Pool, keys: KeyRing | None) -> None:
        super().__init__(
            title="Stepwell gateway",
            docs_url=None,
            redoc_url=None,
            openapi_url="/openapi.json",
            lifespan=lambda _: producing(pool),
            **_OWN_SPANS,
        )
        self.endpoints = {dialect.path: CallEndpoint(services, dialect) for dialect in DIALECTS}
        """Those of the dialects, by their paths."""
        paths = product(_VERSIONS, self.endpoints.items())
        calls = {version + path: endpoint for version, (path, endpoint) in paths}
        self._door: ASGIApp = Guard(Dispatch(super().__call__, calls, ingest.endpoints), keys)
        if origins := services.config.cors_origins:
            self._door = CORSMiddleware(self._door, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        await self._door(scope, receive, send)


def _add_calls(app: _Gateway, services: Services) -> None:
    # Also as routes: they answer other methods, and are what the documentation lists.
    routes = app.router.routes
    for base, (path, endpoint) in product(_BASES, app.endpoints.items()):
        routes.append(Route(base + path, endpoint, methods=["POST"]))
    counts = [(dialect.path, CountEndpoint(services, dialect)) for dialect in COUNTS]
    embeddings = EmbeddingsEndpoint(services.config, services.gate)
    for base in _BASES:
        routes += [Route(base + path, count, methods=["POST"]) for path, count in counts]
        routes.append(Route(f"{base}/embeddings", embeddings, methods=["POST"]))
        routes.append(WebSocketRoute(f"{base}/responses", _no_websocket))


def _add_models(app: FastAPI, exchange: Exchange, engine: Engine) -> None:
    async def models(request: Request) -> Response:  # noqa: ARG001 - Starlette's signature
        return _json(models_json([model_entry(engine.model, engine.context_length)]))

    async def model(request: Request) -> Response:
        exchange.check_model(request.path_params["name"])
        return _json(model_json(model_entry(engine.model, engine.context_length)))

    async def hello(request: Request) -> Response:  # noqa: ARG001 - clients probe the base URL before they begin
        return Response(status_code=200)

    routes = app.router.routes
    for base in _BASES:
        routes.append(Route(f"{base}/models", models, methods=["GET"]))
        routes.append(Route(f"{base}/models/{{name:path}}", model, methods=["GET"]))
        routes.append(Route(f"{base}/api/hello", hello, methods=["GET"]))
        routes.append(Route(base or "/", hello, methods=["HEAD"]))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _no_websocket(websocket: WebSocket) -> None:
    """Tell a client that it has to use HTTP, in the way that makes it do so."""
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(Response(status_code=426, headers={"upgrade": "HTTP/1.1"}))
    else:
        await websocket.close(code=1002)


class _LastResort:
    """An error that nobody knows becomes an answer here, so that the connection lives on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            problem = logged(error, f"{scope['method']} {scope['path']}")
            if started:
                raise
            await problem_response(problem, problem_json(problem))(scope, receive, send)


async def _on_error(request: Request, error: Exception) -> Response:
    problem = logged(error, f"{request.method} {request.url.path}")
    request.app.state.meters.refusals.labels(problem.code).inc()
    return problem_response(problem, problem_json(problem))


async def _on_invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    return await _on_error(request, InvalidRequest(f"{place or 'body'}: {first['msg']}"))


async def _on_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"{request.method} {request.url.path}: {error.detail if isinstance(error, HTTPException) else error}"
    problem = Problem(status=status, type="invalid_request_error", code="no_such_route", message=message)
    return problem_response(problem, problem_json(problem))
