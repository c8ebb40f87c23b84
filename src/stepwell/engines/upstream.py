"""An inference server behind HTTP: requests, server-sent events, and one error for each way in which it can fail."""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import aiohttp
import msgspec
from pydantic import Field, SecretStr

from stepwell.config import Config
from stepwell.errors import ContextOverflow, EngineError, EngineTimeout, InvalidRequest, StepwellError

T = TypeVar("T")

_LONGEST_EVENT: Final = 64 * 1024 * 1024
"""Bytes without a line break after which a stream is garbage."""
_OVERFLOW: Final = re.compile(r"context[ _](length|window)|max_model_len|maximum context", re.IGNORECASE)
_SHOWN: Final = 300
"""Characters of an upstream's words that an error message repeats."""


class UpstreamConfig(Config):
    """Where inference servers are and how long to wait for them."""

    urls: tuple[Annotated[str, Field(pattern="^https?://")], ...] = Field(min_length=1)
    """Base URLs, without `/v1`, of servers of the same model. Calls of one session go to the same one."""
    api_key: SecretStr = SecretStr("")
    """Sent as a bearer token; empty sends none."""
    connect_timeout: float = Field(default=10.0, gt=0)
    """Seconds in which a connection must stand."""
    idle_timeout: float = Field(default=600.0, gt=0)
    """Seconds without a byte after which an answer is given up. An answer that is not streamed, or waits in the
    server's queue, is silent all the time."""


class Upstream:
    """One server. Usable from several event loops; each has its own connections, kept alive between requests."""

    def __init__(self, url: str, config: UpstreamConfig) -> None:
        """Nothing is sent yet."""
        self.url: Final = url.rstrip("/").removesuffix("/v1")
        key = config.api_key.get_secret_value()
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # no sock_read: aiohttp would set a timer anew at every read, which costs a seventh of a streamed token
        self._timeout = aiohttp.ClientTimeout(sock_connect=config.connect_timeout)
        self._config = config
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = WeakKeyDictionary()

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next request opens new ones."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def get(self, path: str, kind: type[T]) -> T:
        """The JSON that the server has at `path`. Raises as `post` does."""
        return await self._asked("GET", path, None, kind)

    async def post(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        """The JSON answer to `body`.

        Raises:
            InvalidRequest: the server refuses what was asked, with its words.
            ContextOverflow: the same, because the prompt is too long.
            EngineTimeout: the server does not answer in time.
            EngineError: anything else; the message says what.
        """
        return await self._asked("POST", path, msgspec.json.encode(body), kind)

    async def _asked(self, method: str, path: str, body: bytes | None, kind: type[T]) -> T:
        with self._explained():
            async with asyncio.timeout(self._config.idle_timeout):
                async with self._client().request(
                    method, self.url + path, data=body, allow_redirects=False
                ) as response:
                    return self.decoded(await self._accepted(response), msgspec.json.Decoder(kind))

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[list[bytes], None]:
        """The payloads of the server-sent events that answer `body`, as many at a time as arrive together.

        Ends where the stream ends; closing early closes the connection, by which the server knows. Raises as `post`.
        """
        with self._explained():
            async with asyncio.timeout(self._config.idle_timeout):
                posting = self._client().post(self.url + path, data=msgspec.json.encode(body), allow_redirects=False)
                response = await posting
            with _Patience(response, self._config.idle_timeout) as patience:
                if response.status != 200 or response.content_type != "text/event-stream":
                    text = await self._accepted(response)
                    raise EngineError(f"{self.url} answered with something else than a stream: {_shown(text)}")
                rest = b""
                while data := await patience.read():
                    *lines, rest = (rest + data).split(b"\n")
                    if payloads := [line[5:].strip() for line in lines if line.startswith(b"data:")]:
                        yield payloads
                    if len(rest) > _LONGEST_EVENT:
                        raise EngineError(f"{self.url} streams something that is no event: {_shown(rest)}")

    async def answers(self, path: str) -> bool:
        """Whether the server answers a GET of `path` with success, soon. Never raises."""
        soon = aiohttp.ClientTimeout(total=self._config.connect_timeout)
        try:
            async with self._client().get(self.url + path, timeout=soon, allow_redirects=False) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def decoded(self, payload: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
        """A payload as `decoder`'s type. Raises EngineError if it is something else."""
        try:
            return decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EngineError(f"{self.url} sent what cannot be understood ({error}): {_shown(payload)}") from error

    def _client(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or client.closed:
            # No limit: how many requests run at once is for the server's queue to decide. And never use a connection
            # that uvicorn, which keeps an idle one for 5 s, may be closing at this moment.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
            client = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=self._timeout)
            self._clients[loop] = client
        return client

    async def _accepted(self, response: aiohttp.ClientResponse) -> bytes:
        """The body of a successful response; raises what another one means."""
        body = await response.read()
        if response.status != 200:
            raise refusal(self.url, response.status, _words(body))
        return body

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what went wrong on the way."""
        try:
            yield
        except aiohttp.ConnectionTimeoutError as error:
            seconds = self._config.connect_timeout
            raise EngineTimeout(f"{self.url} could not be reached within {seconds:g} s (connect_timeout)") from error
        except TimeoutError as error:
            seconds = self._config.idle_timeout
            raise EngineTimeout(f"{self.url} sent nothing for {seconds:g} s (idle_timeout)") from error
        except aiohttp.ClientConnectorError as error:
            raise EngineError(
                f"{self.url} cannot be reached: {error.os_error}. Is the server running there?"
            ) from error
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionError) as error:
            raise EngineError(f"{self.url} closed the connection before its answer was complete") from error
        except aiohttp.ClientError as error:
            raise EngineError(f"{self.url} does not speak proper HTTP: {type(error).__name__}: {error}") from error


class _Patience:
    """Reads a response's body, gives up a read that takes too long, and closes the connection if the body is not
    read to its end. One timer per response, which looks at most every `seconds` whether a read is overdue."""

    def __init__(self, response: aiohttp.ClientResponse, seconds: float) -> None:
        self._response = response
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._since = math.inf
        self._timer = self._loop.call_later(seconds, self._look)

    def __enter__(self) -> "_Patience":
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._response.release()  # closes the connection unless the body was read to its end

    async def read(self) -> bytes:
        """What has arrived, at least a byte; empty at the end. Raises TimeoutError."""
        self._since = self._loop.time()
        data = await self._response.content.readany()
        self._since = math.inf  # whoever takes what was read may take his time
        return data

    def _look(self) -> None:
        waited = self._loop.time() - self._since
        if waited >= self._seconds:
            self._response.content.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_later(self._seconds - max(waited, 0.0), self._look)


def refusal(url: str, status: int, words: str) -> StepwellError:
    """What an answer with an HTTP status other than 200 means for the caller."""
    words = words or f"HTTP {status}"
    if status in (401, 403):
        return EngineError(f"{url} refuses the API key (HTTP {status}); set the engine's api_key: {words}")
    if status in (400, 413, 422):
        return ContextOverflow(words) if _OVERFLOW.search(words) else InvalidRequest(words)
    return EngineError(f"{url} answered with HTTP {status}: {words}")


def _words(body: bytes) -> str:
    """What a server says about an error, wherever it puts it."""
    try:
        shape = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _shown(body)
    for name in ("error", "message", "detail"):
        if isinstance(shape, dict) and name in shape:
            shape = shape[name]
    return _shown(shape if isinstance(shape, str) else msgspec.json.encode(shape))


def _shown(text: bytes | str) -> str:
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return words if len(words) <= _SHOWN else words[:_SHOWN] + "…"
