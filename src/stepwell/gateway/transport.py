"""HTTP without a meaning: bodies with a limit, answers that stop when the client leaves, server-sent events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, Final, TypeVar

from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stepwell.errors import InvalidRequest
from stepwell.gateway.problems import BodyTooLarge, Problem, problem_json

_T = TypeVar("_T")
CLIENT_CLOSED: Final = 499


class ClientGone(Exception):
    """The client closed the connection before it was answered."""


async def read_json(request: Request, limit: int, *, allow_nan: bool = False) -> Any:
    """The request's JSON body, checked for nothing but being JSON: UTF-8, no lone surrogates, not nested too deep.

    Args:
        request: The request, its body unread.
        limit: Most bytes that are read.
        allow_nan: Let NaN and infinity through, for a caller that refuses them item by item.

    Raises:
        BodyTooLarge: over `limit` bytes.
        InvalidRequest: not JSON.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise BodyTooLarge(f"the body is over {limit} bytes; send less, or raise gateway.max_body_bytes")
    try:
        return from_json(bytes(body), allow_inf_nan=allow_nan)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled if the client disconnects first.

    Raises:
        ClientGone: it did; `work` has finished its clean-up.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events from a generator, which is closed at once when the client leaves."""

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        """Send `events`, each already in wire form."""
        super().__init__(events, headers={"cache-control": "no-cache", **headers}, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Answer one request."""
        with contextlib.suppress(ClientGone):
            await unless_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._events) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def problem_response(problem: Problem) -> Response:
    """An error answer."""
    return Response(problem_json(problem), problem.status, media_type="application/json")
