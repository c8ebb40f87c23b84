"""An HTTP/1.1 client that costs microseconds: what the gateway needs to forward calls, and nothing else.

No redirects, cookies, proxies or compression. Connections are kept between requests, for each event loop its own. Why
not a library: docs/decisions/0009-own-http-for-upstreams.md.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from stepwell.engines.connection import Connection, Pool, Stale
from stepwell.errors import ConfigError, EngineError, EngineTimeout

LARGEST_BODY: Final = 256 * 1024 * 1024
"""Bytes of a body beyond which nobody reads on: no answer is so large, not even with the log-probs of a long prompt."""


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
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()

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
                await connection.ask(data)
                return Response(self.url, connection)
            except Stale:
                pass
        connection = await self._connected(pool)
        await connection.ask(data)
        return Response(self.url, connection)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next request opens new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            for connection in list(pool.all):
                connection.abort()
            await asyncio.sleep(0)  # the loop closes them in its next round, and it may have no other

    def _pool(self) -> "Pool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = Pool(loop)
        return pool

    async def _connected(self, pool: "Pool") -> "Connection":
        name = self._host if self._ssl else None
        try:
            async with asyncio.timeout(self.connect_timeout):
                _, connection = await pool.loop.create_connection(
                    lambda: Connection(self.url, self.idle_timeout, pool),
                    self._host,
                    self._port,
                    ssl=self._ssl,
                    server_hostname=name,
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

    __slots__ = ("_connection", "_url", "kind", "status")

    def __init__(self, url: str, connection: Connection) -> None:
        """The answer of the server at `url` whose head `connection` has just received."""
        self._url = url
        self._connection = connection
        self.status: Final = connection.status
        self.kind: Final = connection.kind
        """Content type, without its parameters; empty if there is none."""

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The rest of the body, if there is any, is not wanted."""
        self._connection.leave()

    @property
    def retry_after(self) -> float | None:
        """Seconds from now until it makes sense to ask again, if the server says so."""
        return _seconds(self._connection.header(b"retry-after").strip())

    async def read(self, largest: int = LARGEST_BODY) -> bytes:
        """The rest of the body. Raises as `some`, and EngineError if it has more than `largest` bytes."""
        parts, size = [], 0
        while part := await self.some():
            parts.append(part)
            size += len(part)
            if size > largest:
                raise EngineError(f"{self._url} sent more than the {largest:,} bytes that an answer may have")
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


def _seconds(retry_after: str) -> float | None:
    """What the header says: a number of seconds, or a date; None if it is neither."""
    if retry_after.isascii() and retry_after.isdecimal():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _authority(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def _lines(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(f"the header {name} must be printable ASCII; does its value end with a line break?")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
