"""One connection to an HTTP/1.1 server, on an asyncio protocol: httptools parses what arrives as it arrives, so that a
streamed token is one callback and one wake-up."""

import asyncio
from typing import Final

import httptools

from stepwell.errors import EngineError, EngineTimeout

_KEPT: Final = 4.0
"""Seconds after which an idle connection is not used again: uvicorn closes one after 5."""
_LONGEST_HEAD: Final = 64 * 1024
"""Bytes of status line and headers; more is no proper HTTP."""
_FAR: Final = 1024 * 1024
"""Bytes that may lie unread before the server has to wait."""


class Stale(EngineError):
    """A kept connection was closed before anything of the answer came: the server had given it up already."""


class Pool:
    """The connections of one event loop to one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start with none."""
        self.loop = loop
        self.all: set[Connection] = set()
        self.idle: list[Connection] = []

    def kept(self) -> "Connection | None":
        """The connection that was used last, if the server can be trusted to have it still."""
        while self.idle:
            connection = self.idle.pop()
            if self.loop.time() - connection.since < _KEPT and not connection.closing:
                return connection
            connection.abort()
        return None


class Connection(asyncio.Protocol):
    """One connection, one request at a time: what the event loop and the parser call, and what its reader asks."""

    def __init__(self, url: str, idle_timeout: float, pool: Pool) -> None:
        """To the server that errors call `url`; after `idle_timeout` seconds without a byte an answer is given up."""
        self._url = url
        self._patience = idle_timeout
        self._pool = pool
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: EngineError | None = None
        self._used = False
        self._reusable = False
        self._paused = False
        self.since = 0.0
        """Time of the loop since when it waits for bytes, or is idle."""
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._heard = self._headed = self._interim = False
        self._size = 0
        self.parts: list[bytes] = []
        """Of the body, unread."""
        self.status = 0
        """Of the answer."""
        self.complete = False
        """Whether all of the body is in `parts`, or was."""

    # What a request does.

    async def ask(self, data: bytes) -> None:
        """Send a request and wait for the head of its answer.

        Raises:
            Stale: the connection was used before, and closed instead of answered on.
            EngineTimeout: nothing arrives in time.
            EngineError: the server hangs up, or does not speak HTTP.
        """
        self._begin()
        self._transport.write(data)
        self._timer = self._pool.loop.call_later(self._patience, self._look)
        try:
            while not self._headed:
                await self.arrival()
        except BaseException:
            self.leave()
            raise

    @property
    def kind(self) -> str:
        """Content type of the answer, without its parameters; empty if there is none."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    def header(self, name: bytes) -> str:
        """A header of the answer, by its name in lower case; empty if there is none."""
        return self._headers.get(name, b"").decode("latin-1")

    def arrival(self) -> asyncio.Future[None]:
        """Done when something new has arrived; fails with what goes wrong. Raises what has gone wrong already."""
        if self._failure is not None:
            raise self._failure
        loop = self._pool.loop
        self.since = loop.time()
        self._waiter = waiter = loop.create_future()
        return waiter

    def take(self) -> bytes:
        """What is in `parts`."""
        parts = self.parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self.parts, self._size = [], 0
        if self._paused and not self.closing:
            self._paused = False
            self._transport.resume_reading()
        return data

    def leave(self) -> None:
        """The request is over: keep the connection for another one, if all of the answer was read. Idempotent."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if self.complete and self._reusable and not self.parts and not self.closing:
            self._used = True
            self.since = self._pool.loop.time()
            self._pool.idle.append(self)
        else:
            self.abort()

    @property
    def closing(self) -> bool:
        """Whether it cannot be used any more."""
        return self._failure is not None or self._transport.is_closing()

    def abort(self) -> None:
        """Close it now; what was sent and not received is lost."""
        self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that of a stream
        """See asyncio.Protocol."""
        self._transport = transport
        self._pool.all.add(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._parser is None or self._timer is None:  # nobody asked
            self.abort()
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._garbled(str(error) or type(error).__name__)
        if not self._headed:
            self._head_size += len(data)
            if self._head_size > _LONGEST_HEAD:
                self._garbled("its headers do not end")
        elif self._size > _FAR and not self._paused and not self.closing:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._parser = None  # which holds this object
        self._pool.all.discard(self)
        if self._headed and not self._framed and exc is None and self._failure is None:
            self.complete = True  # a body without a length ends with its connection
        elif not self.complete:
            kind = Stale if self._used and not self._heard else EngineError
            self._fail(kind(f"{self._url} closed the connection before its answer was complete"))
        self._wake()

    def _look(self) -> None:
        """Whether a read is overdue; whoever takes what was read may take his time."""
        loop, patience = self._pool.loop, self._patience
        waited = 0.0 if self._waiter is None or self._waiter.done() else loop.time() - self.since
        if waited < patience:
            self._timer = loop.call_later(patience - waited, self._look)
            return
        self._fail(EngineTimeout(f"{self._url} sent nothing for {patience:g} s (idle_timeout)"))
        self._wake()
        self.abort()

    def _garbled(self, why: str) -> None:
        self._reusable = False
        if not self.complete:  # else it is only what follows
            self._fail(EngineError(f"{self._url} does not speak proper HTTP: {why}"))
            self.abort()

    def _fail(self, failure: EngineError) -> None:
        self._failure = self._failure or failure

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._failure is None or self.parts:
            waiter.set_result(None)
        else:
            waiter.set_exception(self._failure)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """See httptools."""
        if self.complete:
            raise ValueError("more than was asked for")  # makes the parser stop here

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """See httptools."""
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self._interim = self.status < 200  # such as "100 Continue": the answer is still to come
        if self._interim:
            self._headers.clear()
            return
        self._headed = True
        self._framed = b"content-length" in self._headers or b"transfer-encoding" in self._headers

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self.parts.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        if not self._interim:
            assert self._parser is not None
            self.complete = True
            self._reusable = self._parser.should_keep_alive()
