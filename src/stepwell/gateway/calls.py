"""The doors through which agents call: one endpoint per dialect, streamed and not, errors in its own shape."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepwell.errors import EngineError
from stepwell.gateway.callers import caller_of
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.dialects.base import Answer, ChatCall, Delta, Dialect, Event, Started, StreamWriter
from stepwell.gateway.dialects.chat import Tokenize
from stepwell.gateway.dialects.messages import CountTokens
from stepwell.gateway.exchange import Exchange
from stepwell.gateway.gate import Gate
from stepwell.gateway.observe import Meters, Watch
from stepwell.gateway.problems import logged, problem_response
from stepwell.gateway.redact import Redactor
from stepwell.gateway.transport import CLIENT_CLOSED, ClientGone, EventStream, parse_json, read_body, unless_gone

_LONG_BODY: Final = 65_536
"""Bytes from which on a body is parsed in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What all endpoints share."""

    exchange: Exchange
    gate: Gate
    meters: Meters
    redact: Redactor
    config: GatewayConfig


class CallEndpoint:
    """`POST` on the path of one dialect; an ASGI application."""

    def __init__(self, services: Services, dialect: Dialect) -> None:
        """Play the calls of `dialect`."""
        self._services = services
        self._config = services.config
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        watch = Watch(self._services.meters, self._dialect.name, request.headers)
        try:
            # Before the gate: a body that is slow to arrive holds no place that another call could have.
            body = await read_body(request, self._config.max_body_bytes, self._config.body_seconds)
            async with self._services.gate.passing(scope["state"]["principal"]):
                await self._respond(request, body, send, watch)
        except ClientGone:
            await Response(status_code=CLIENT_CLOSED)(scope, receive, send)
        except Exception as error:
            problem = logged(error, f"{request.method} {request.url.path}")
            watch.refused(problem)
            await problem_response(problem, self._dialect.problem(problem))(scope, receive, send)
        finally:
            watch.left()  # unless the call has ended otherwise

    async def _respond(self, request: Request, body: bytes, send: Send, watch: Watch) -> None:
        call = await asyncio.to_thread(self._parse, body) if len(body) > _LONG_BODY else self._parse(body)
        watch.asked(call)
        events = self._services.exchange.play(call, caller_of(request))
        # Closed here too, because a generator that nobody began to read does nothing when it is closed.
        async with aclosing(events):
            response = await (self._streamed if call.stream else self._whole)(call, events, request, watch)
            await response(request.scope, request.receive, send)

    async def _whole(
        self, call: ChatCall, events: AsyncGenerator[Event, None], request: Request, watch: Watch
    ) -> Response:
        started, answers = await unless_gone(request.receive, _drain(events, call.choices))
        headers = _headers([answer.step.id for answer in answers], started.trajectory_id)
        headers["x-stepwell-policy-version"] = str(answers[0].step.policy_version_max)
        watch.answered(answers)
        return Response(self._dialect.answer(call, answers), headers=headers, media_type="application/json")

    def _parse(self, body: bytes) -> ChatCall:
        return self._dialect.parse(parse_json(body), self._services.redact(body))

    async def _streamed(
        self, call: ChatCall, events: AsyncGenerator[Event, None], request: Request, watch: Watch
    ) -> Response:
        # Errors before the first token still have a status of their own, so the headers wait for it.
        started = await unless_gone(request.receive, _first(events))
        watch.first_token()
        writer = self._dialect.writer(call)
        headers = _headers(started.step_ids, started.trajectory_id)
        headers["x-stepwell-policy-version"] = str(started.policy_version)
        writing = _Writing(writer, started, watch)
        return EventStream(events, writing, headers, ping=writer.ping(), ping_seconds=self._config.ping_seconds)


class CountEndpoint:
    """How long a prompt would be; nothing is sampled and nothing stored. An ASGI application."""

    def __init__(self, services: Services, dialect: CountTokens | Tokenize) -> None:
        """Count, in the words of `dialect`, with the renderer of the exchange."""
        self._services = services
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request, config = Request(scope, receive), self._services.config
        try:
            body = await read_body(request, config.max_body_bytes, config.body_seconds)
            async with self._services.gate.passing(scope["state"]["principal"]):
                tokens = await self._services.exchange.count(self._dialect.parse(parse_json(body), body))
                response = Response(self._dialect.answer(tokens), media_type="application/json")
        except ClientGone:
            response = Response(status_code=CLIENT_CLOSED)
        except Exception as error:
            problem = logged(error, f"{request.method} {request.url.path}")
            response = problem_response(problem, self._dialect.problem(problem))
        await response(scope, receive, send)


async def _drain(events: AsyncGenerator[Event, None], choices: int) -> tuple[Started, tuple[Answer, ...]]:
    started: Started | None = None
    answers = []
    async for event in events:
        if isinstance(event, Started):
            started = event
        elif isinstance(event, Answer):
            answers.append(event)
    if started is None or len(answers) != choices:
        raise EngineError("the engine ended without an answer; try again")
    return started, tuple(sorted(answers, key=lambda answer: answer.choice))


async def _first(events: AsyncGenerator[Event, None]) -> Started:
    async for event in events:
        if isinstance(event, Started):
            return event
    raise EngineError("the engine ended without a token; try again")


class _Writing:
    """Writes the answers to one call, and tells `watch` what becomes of them; see `transport.Writing`."""

    def __init__(self, writer: StreamWriter, started: Started, watch: Watch) -> None:
        """`started` precedes everything that is written."""
        self._writer = writer
        self._watch = watch
        self._begun = writer.start(started)
        self._expected = len(started.step_ids)
        self._answers: list[Answer] = []

    def write(self, item: Event) -> bytes:
        if self._begun:
            begun, self._begun = self._begun, b""
            return begun + self.write(item)
        if isinstance(item, Delta):
            return self._writer.delta(item)
        if isinstance(item, Started):
            return self._writer.start(item)
        self._answers.append(item)
        return self._writer.end(item)

    def over(self) -> None:
        self._watch.answered(self._answers)

    def left(self) -> None:
        if len(self._answers) == self._expected:  # with everything that it wanted
            self._watch.answered(self._answers)

    def failed(self, error: Exception) -> bytes:
        problem = logged(error, "a stream")
        self._watch.refused(problem)
        return self._begun + self._writer.error(problem)


def _headers(step_ids: "list[str] | tuple[str, ...]", trajectory_id: str) -> dict[str, str]:
    return {"x-stepwell-step": ",".join(step_ids), "x-stepwell-trajectory": trajectory_id}
