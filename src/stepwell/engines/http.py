"""An HTTP/1.1 client that costs microseconds: what the gateway needs to forward calls, and nothing else.

No redirects, cookies, proxies or compression. httptools parses what arrives as it arrives, so that a streamed token is
one callback and one wake-up; connections are kept between requests, for each event loop its own. Why not a library:
docs/decisions/0009-own-http-for-upstreams.md.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

import httptools

from stepwell.errors import ConfigError, EngineError, EngineTimeout

_KEPT: Final = 4.0
"""Seconds after which an idle connection is not used again: uvicorn closes one after 5."""
_LONGEST_HEAD: Final = 64 * 1024
"""Bytes of status line and headers; more is no proper HTTP."""
_FAR: Final = 1024 * 1024
"""Bytes that may lie unread before the server has to wait."""


class _Stale(EngineError):
    """A kept connection was closed before anything of the answer came: the server had given it up already."""


class HttpClient:
    """One server. Usable from several event loops; each has its own connections, kept alive between requests."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, connect_timeout: float = 10.0, idle_timeout: float = 600.0
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: What is before the path of each request.
            headers: Sent with each request.
            connect_timeout: Seconds in which a connection must stand.
            idle_timeout: Seconds without a byte after which an answer is given up.

        Raises:
            ConfigError: `url` is none, or a header cannot be sent.
        """
        self.url: Final = url
        self.connect_timeout: Final = connect_timeout
        self.idle_timeout: Final = idle_timeout
        try:
            parts = urlsplit(url)
            secure = parts.scheme == "https"
            self._host = (parts.hostname or "").encode("idna").decode()
            self._port = parts.port or (443 if secure else 80)
        except ValueError as error:
            raise ConfigError(f"{url!r} is no URL of a server: {error}") from error
        if not self._host or "@" in parts.netloc:
            raise ConfigError("the URL of a server needs a host, and neither a name nor a password before it")
        self._ssl = ssl.create_default_context() if secure else None
        self._path = quote(parts.path, safe="/%:@~!$&'()*+,;=")
        self._head = _lines({"Host": _authority(self._host, parts.port), "Accept-Encoding": "identity", **headers})
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()

    async def request(self, method: str, path: str, body: bytes = b"") -> "Response":
        """Send a request; the answer's head has arrived when this returns. Close the response in any case.

        A request is sent a second time only if the server closed a kept connection instead of answering on it.

        Raises:
            EngineTimeout: the server cannot be reached, or sends nothing, in time.
            EngineError: it cannot be reached, hangs up, or does not speak HTTP; the message says which.
        """
        length = "" if method == "GET" else f"Content-Length: {len(body)}\r\n"
        data = f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}{length}\r\n".encode() + body
        pool = self._pool()
        connection = pool.kept()
        if connection is not None:
            try:
                return await connection.ask(data)
            except _Stale:
                pass
        return await (await self._connected(pool)).ask(data)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next request opens new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            for connection in list(pool.all):
                connection.abort()
            await asyncio.sleep(0)  # the loop closes them in its next round, and it may have no other

    def _pool(self) -> "_Pool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = _Pool(loop)
        return pool

    async def _connected(self, pool: "_Pool") -> "_Connection":
        name = self._host if self._ssl else None
        try:
            async with asyncio.timeout(self.connect_timeout):
                _, connection = await pool.loop.create_connection(
                    lambda: _Connection(self, pool), self._host, self._port, ssl=self._ssl, server_hostname=name
                )
        except TimeoutError as error:
            seconds = self.connect_timeout
            raise EngineTimeout(f"{self.url} could not be reached within {seconds:g} s (connect_timeout)") from error
        except OSError as error:
            raise EngineError(f"{self.url} cannot be reached: {error}. Is the server running there?") from error
        return connection


class Response:
    """An answer whose head has arrived. Used in a `with` block, at whose end the connection is closed, unless the body
    was read to its end: then it serves the next request."""

    __slots__ = ("_connection", "kind", "status")

    def __init__(self, connection: "_Connection", status: int, kind: str) -> None:
        self._connection = connection
        self.status: Final = status
        self.kind: Final = kind
        """Content type, without its parameters; empty if there is none."""

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The rest of the body, if there is any, is not wanted."""
        self._connection.leave()

    async def read(self) -> bytes:
        """The rest of the body. Raises as `some`."""
        parts = []
        while part := await self.some():
            parts.append(part)
        return b"".join(parts)

    async def some(self) -> bytes:
        """What has arrived of the body since the last call, at least a byte; empty at its end.

        Raises:
            EngineTimeout: nothing arrived for `idle_timeout` seconds.
            EngineError: the body is cut off, or is not proper HTTP.
        """
        connection = self._connection
        while not connection.parts:
            if connection.complete:
                return b""
            await connection.arrival()
        return connection.take()


class _Pool:
    """The connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.all: set[_Connection] = set()
        self.idle: list[_Connection] = []

    def kept(self) -> "_Connection | None":
        """The connection that was used last, if the server can be trusted to have it still."""
        while self.idle:
            connection = self.idle.pop()
            if self.loop.time() - connection.since < _KEPT and not connection.closing:
                return connection
            connection.abort()
        return None


class _Connection(asyncio.Protocol):
    """One connection, one request at a time: what the event loop and the parser call, and what a `Response` asks."""

    def __init__(self, client: HttpClient, pool: _Pool) -> None:
        self._client = client
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
        self.complete = False
        """Whether all of the body is in `parts`, or was."""

    # What a request does.

    async def ask(self, data: bytes) -> Response:
        """Send a request and wait for the head of its answer. Raises as `HttpClient.request`, and _Stale."""
        self._begin()
        self._transport.write(data)
        self._timer = self._pool.loop.call_later(self._client.idle_timeout, self._look)
        try:
            while not self._headed:
                await self.arrival()
        except BaseException:
            self.leave()
            raise
        kind = self._headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        return Response(self, self._status, kind.decode("latin-1"))

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
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    def leave(self) -> None:
        """The request is over: keep the connection for another one, if all of the answer was read."""
        if self._timer is not None:
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
        elif self._size > _FAR and not self._paused:
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
            kind = _Stale if self._used and not self._heard else EngineError
            self._fail(kind(f"{self._client.url} closed the connection before its answer was complete"))
        self._wake()

    def _look(self) -> None:
        """Whether a read is overdue; whoever takes what was read may take his time."""
        loop, patience = self._pool.loop, self._client.idle_timeout
        waited = 0.0 if self._waiter is None or self._waiter.done() else loop.time() - self.since
        if waited < patience:
            self._timer = loop.call_later(patience - waited, self._look)
            return
        self._fail(EngineTimeout(f"{self._client.url} sent nothing for {patience:g} s (idle_timeout)"))
        self._wake()
        self.abort()

    def _garbled(self, why: str) -> None:
        self._reusable = False
        if not self.complete:  # else it is only what follows
            self._fail(EngineError(f"{self._client.url} does not speak proper HTTP: {why}"))
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
        self._status = self._parser.get_status_code()
        self._interim = self._status < 200  # such as "100 Continue": the answer is still to come
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


def _authority(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def _lines(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(f"the header {name} must be printable ASCII; does its value end with a line break?")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
