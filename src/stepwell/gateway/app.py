"""The gateway as a web application: routes, and errors in one shape. Everything it needs is handed in."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import product
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from stepwell.engines.base import Engine
from stepwell.errors import EngineError, StepwellError
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.dialects.base import Answer, ChatCall, Dialect, Event, Started, StreamWriter
from stepwell.gateway.dialects.chat import ChatDialect
from stepwell.gateway.exchange import Exchange
from stepwell.gateway.ingest import Ingest
from stepwell.gateway.problems import Problem, UnknownModel, problem_of
from stepwell.gateway.sessions import Sessions, caller_of
from stepwell.gateway.transport import (
    CLIENT_CLOSED,
    ClientGone,
    EventStream,
    problem_response,
    read_json,
    unless_gone,
)
from stepwell.pool.base import Pool
from stepwell.rendering.renderer import Renderer

_log: Final = logging.getLogger(__name__)

DIALECTS: Final[tuple[Dialect, ...]] = (ChatDialect(),)

# Clients differ in whether they add /v1 to the base URL, and some add it to one that has it.
_BASES: Final = ["".join(parts) for parts in product(("", "/t/{trajectory}"), ("", "/v1", "/v1/v1"))]


def create_app(engine: Engine, renderer: Renderer, pool: Pool, config: GatewayConfig | None = None) -> FastAPI:
    """The gateway in front of `engine`, recording into `pool`; it closes neither.

    Routes: each dialect's path, below `/`, `/v1` and `/t/{trajectory}/v1`; the pool's routes of `Ingest`; `/v1/models`;
    `/health`.
    """
    config = config or GatewayConfig()
    sessions = Sessions(pool, renderer, config.max_sessions)
    exchange = Exchange(engine, renderer, pool, sessions, config)
    app = FastAPI(title="Stepwell gateway", docs_url=None, redoc_url=None, openapi_url=None)
    for base, dialect in product(_BASES, DIALECTS):
        route = _chat_route(exchange, dialect, config.max_body_bytes)
        app.add_api_route(base + dialect.path, route, methods=["POST"])
    _add_information(app, engine)
    app.include_router(Ingest(pool, sessions, config.max_body_bytes).router())
    app.add_exception_handler(StepwellError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_error)
    return app


def _add_information(app: FastAPI, engine: Engine) -> None:
    entry = {"id": engine.model, "object": "model", "created": 0, "owned_by": "stepwell"}

    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [entry]})

    async def model(name: str) -> JSONResponse:
        if name != engine.model:
            raise UnknownModel(f"the model {name!r} is not served here; use {engine.model!r}")
        return JSONResponse(entry)

    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok", "model": engine.model, "policy_version": engine.policy_version})

    for base in _BASES:
        app.add_api_route(f"{base}/models", models, methods=["GET"])
        app.add_api_route(f"{base}/models/{{name:path}}", model, methods=["GET"])
    app.add_api_route("/health", health, methods=["GET"])


def _chat_route(exchange: Exchange, dialect: Dialect, max_body_bytes: int) -> Callable[[Request], Awaitable[Response]]:
    async def chat(request: Request) -> Response:
        call = dialect.parse(await read_json(request, max_body_bytes))
        events = exchange.play(call, caller_of(request))
        try:
            if call.stream:
                return await _streamed(dialect, call, events, request)
            answer = await unless_gone(request.receive, _drain(events))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)
        step = answer.step
        headers = _headers(step.id, step.trajectory_id, step.policy_version_max)
        return Response(dialect.answer(call, answer), headers=headers, media_type="application/json")

    return chat


async def _drain(events: AsyncGenerator[Event, None]) -> Answer:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Answer):
                return event
    raise EngineError("the engine ended without an answer; try again")


async def _streamed(
    dialect: Dialect, call: ChatCall, events: AsyncGenerator[Event, None], request: Request
) -> Response:
    # Errors before the first token still have a status of their own, so the headers wait for it.
    started = await unless_gone(request.receive, _first(events))
    headers = _headers(started.step_id, started.trajectory_id, started.policy_version)
    return EventStream(_written(dialect.writer(call, started), events), headers)


async def _first(events: AsyncGenerator[Event, None]) -> Started:
    async for event in events:
        if isinstance(event, Started):
            return event
    raise EngineError("the engine ended without a token; try again")


async def _written(writer: StreamWriter, events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        try:
            yield writer.start()
            async for event in events:
                if isinstance(event, Answer):
                    yield writer.end(event)
                elif not isinstance(event, Started):
                    yield writer.delta(event)
        except Exception as error:  # the status is sent already, so the error goes into the stream
            yield writer.error(_logged(error, "a stream"))


def _headers(step_id: str, trajectory_id: str, policy_version: int) -> dict[str, str]:
    return {
        "x-stepwell-step": step_id,
        "x-stepwell-trajectory": trajectory_id,
        "x-stepwell-policy-version": str(policy_version),
    }


def _logged(error: Exception, what: str) -> Problem:
    problem = problem_of(error)
    if problem.status >= 500:
        _log.error("%s failed", what, exc_info=error)
    return problem


async def _on_error(request: Request, error: Exception) -> Response:
    return problem_response(_logged(error, f"{request.method} {request.url.path}"))


async def _on_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"{request.method} {request.url.path}: {error.detail if isinstance(error, HTTPException) else error}"
    return problem_response(Problem(status=status, type="invalid_request_error", code="no_such_route", message=message))
