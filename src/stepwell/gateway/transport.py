"""HTTP without a meaning: bodies with a limit, answers that stop when the client leaves, server-sent events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepwell.errors import InvalidRequest
from stepwell.gateway.problems import BodyTooLarge, BodyTooSlow

_T = TypeVar("_T")
_Item = TypeVar("_Item", contravariant=True)
CLIENT_CLOSED: Final = 499


class ClientGone(Exception):
    """The client closed the connection before it was answered."""


Ending = Callable[[], bool]
"""Whether the server is about to stop: whoever only waits for something new need not wait any longer."""


def ending_of(request: Request) -> Ending:
    """That of the server that runs the application, if it has told it (`app.state.ending`); else never."""
    ending: Ending = getattr(request.app.state, "ending", lambda: False)
    return ending


async def read_body(request: Request, limit: int, seconds: float = 60.0) -> bytes:
    """The request's body.

    Args:
        request: The request, its body unread.
        limit: Most bytes that are read.
        seconds: Longest time that the client may take to send it.

    Raises:
        BodyTooLarge: over `limit` bytes.
        BodyTooSlow: over `seconds`.
        ClientGone: the client closed the connection before it was complete.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise BodyTooLarge(f"the body is over {limit} bytes; send less, or raise gateway.max_body_bytes")
    try:
        async with asyncio.timeout(seconds):
            return await _all_pieces(request.receive, limit)
    except TimeoutError as error:
        raise BodyTooSlow(f"the body did not arrive within {seconds:g} s") from error


async def _all_pieces(receive: Receive, limit: int) -> bytes:
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        more = message.get("more_body", False)
        if size > limit:
            raise BodyTooLarge(f"the body is over {limit} bytes; send less, or raise gateway.max_body_bytes")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def parse_json(body: bytes, *, allow_nan: bool = False) -> Any:
    """JSON, checked for nothing but being JSON: UTF-8, no lone surrogates, not nested too deep.

    `allow_nan` lets NaN and infinity through, for a caller that refuses them item by item.

    Raises:
        InvalidRequest: not JSON.
    """
    try:
        return from_json(body, allow_inf_nan=allow_nan, cache_strings="keys")
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T], *signs: Coroutine[Any, Any, None]) -> _T:
    """The result of `work`, which is cancelled if the client disconnects first, or one of `signs` of that ends.

    It runs in a task of its own: what wakes up for each token should not have to pass all that is around a call.

    Raises:
        ClientGone: so it was; `work` has finished its clean-up.
    """
    task = asyncio.ensure_future(work)
    gone = False

    def leave(watcher: "asyncio.Future[None]") -> None:
        nonlocal gone
        gone = True
        if not task.cancelling():  # else it cleans up already
            task.cancel()
        if not watcher.cancelled():
            watcher.exception()  # whatever it is, the client cannot be told

    watchers = [asyncio.ensure_future(sign) for sign in (_disconnected(receive), *signs)]
    for watcher in watchers:
        watcher.add_done_callback(leave)
    try:
        return await task
    except asyncio.CancelledError:
        # Somebody else may want the caller's task to end as well; then that is what happens.
        current = asyncio.current_task()
        if gone and current is not None and not current.cancelling():
            raise ClientGone from None
        raise
    finally:
        for watcher in watchers:
            watcher.remove_done_callback(leave)
            watcher.cancel()  # without waiting for it: there is nothing that it cleans up


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_Flow = Literal["sending", "stuck", "sent", "quiet"]
"""Of a stream: an event is on its way; the same one was at the last beat; one has left since then; none has."""
_PATIENCE: Final = 2
"""Beats after which an event that cannot be sent means that nobody reads."""


class Writing(Protocol[_Item]):
    """How a stream is written, and what becomes of it."""

    def write(self, item: _Item) -> bytes:
        """An item in wire form, possibly nothing. On the hot path: called once per token."""
        ...

    def over(self) -> None:
        """All items are sent."""
        ...

    def left(self) -> None:
        """The client left before that."""
        ...

    def failed(self, error: Exception) -> bytes:
        """There will be no more items: what to send instead."""
        ...


class EventStream(Response, Generic[_Item]):
    """Server-sent events made of the items of a generator, which is closed at once when the client leaves.

    A client that takes nothing for two beats, although there is something to take, counts as gone as well: it may keep
    its connection open for ever.
    """

    def __init__(
        self,
        items: AsyncGenerator[_Item, None],
        writing: Writing[_Item],
        headers: Mapping[str, str],
        *,
        ping: bytes = b": ping\n\n",
        ping_seconds: float = 15.0,
    ) -> None:
        """Send `items` as `writing` has them, and `ping` whenever there was none for a beat, `ping_seconds`."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            *((name, value) for name, value in self.raw_headers if name != b"content-length"),
        ]
        self._items = items
        self._writing = writing
        self._ping = ping
        self._ping_seconds = ping_seconds
        self._flow: _Flow = "sending"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Answer one request."""
        async with contextlib.aclosing(self._items):
            with contextlib.suppress(ClientGone):
                await unless_gone(receive, self._send_all(send), self._stalled(send))

    async def _send_all(self, send: Send) -> None:
        rest = b""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for item in self._items:
                if data := self._writing.write(item):
                    self._flow = "sending"
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    self._flow = "sent"
            self._writing.over()
        except (asyncio.CancelledError, OSError):  # servers may raise the latter when they cannot send
            self._writing.left()
            raise
        except Exception as error:  # the status is sent already, so the error goes into the stream
            rest = self._writing.failed(error)
        self._flow = "sending"
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _stalled(self, send: Send) -> None:
        """Keep a quiet stream open with pings; return when the client takes nothing any more."""
        beats = 0
        with contextlib.suppress(TimeoutError):
            while beats < _PATIENCE:
                await asyncio.sleep(self._ping_seconds)
                beats = beats + 1 if self._flow == "stuck" else 0
                if self._flow == "quiet":
                    async with asyncio.timeout(_PATIENCE * self._ping_seconds):
                        await send({"type": "http.response.body", "body": self._ping, "more_body": True})
                elif beats == 0:
                    self._flow = "stuck" if self._flow == "sending" else "quiet"
