"""An inference server behind HTTP: requests, server-sent events, and one error for each way in which it can fail."""

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from pydantic import Field, SecretStr

from stepwell.config import Config
from stepwell.engines.http import LARGEST_BODY, HttpClient, Response
from stepwell.errors import ContextOverflow, EngineError, InvalidRequest, StepwellError

T = TypeVar("T")

_LONGEST_EVENT: Final = 64 * 1024 * 1024
"""Bytes without a line break after which a stream is garbage."""
_OVERFLOW: Final = re.compile(r"context[ _](length|window)|max_model_len|maximum context", re.IGNORECASE)
_SHOWN: Final = 300
"""Characters of an upstream's words that an error message repeats."""
_PASSING: Final = (408, 409, 425, 429)
"""Refusals that concern the moment and not what was asked."""


class Refused(EngineError):
    """The server wants nothing of the kind: the key, the path or the model is wrong, and will be so the next time."""

    def __init__(self, message: str, status: int) -> None:
        """`status`: of the answer."""
        super().__init__(message)
        self.status = status


class Busy(EngineError):
    """The server cannot answer now."""

    def __init__(self, message: str, retry_after: float | None) -> None:
        """`retry_after`: seconds until it makes sense to ask again, if the server says so."""
        super().__init__(message)
        self.retry_after = retry_after


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

    def __init__(self, url: str, config: UpstreamConfig, *, largest: int = LARGEST_BODY) -> None:
        """Nothing is sent yet. An answer of more than `largest` bytes, if it is no stream, is an EngineError.

        Raises:
            ConfigError: `url` is none, or the key cannot be sent.
        """
        self.url: Final = url.rstrip("/").removesuffix("/v1")
        self._largest = largest
        key = config.api_key.get_secret_value()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._http = HttpClient(
            self.url, headers, connect_timeout=config.connect_timeout, idle_timeout=config.idle_timeout
        )

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next request opens new ones."""
        await self._http.aclose()

    async def get(self, path: str, kind: type[T]) -> T:
        """The JSON that the server has at `path`. Raises as `post` does."""
        return await self._asked("GET", path, b"", msgspec.json.Decoder(kind))

    async def post(self, path: str, body: Mapping[str, Any], decoder: "msgspec.json.Decoder[T]") -> T:
        """The JSON answer to `body`, as `decoder`'s type.

        Raises:
            InvalidRequest: the server refuses what was asked, with its words.
            ContextOverflow: the same, because the prompt is too long.
            EngineTimeout: the server does not answer in time.
            Refused: it refuses the key or the model, or has nothing at `path`.
            Busy: it cannot answer now, and may say when to ask again.
            EngineError: anything else; the message says what.
        """
        return await self._asked("POST", path, msgspec.json.encode(body), decoder)

    async def tell(self, path: str, body: Mapping[str, Any]) -> None:
        """Give an order whose answer says no more than that it was followed. Raises as `post` does."""
        with await self._http.request("POST", path, msgspec.json.encode(body)) as response:
            await self._accepted(response)

    async def _asked(self, method: str, path: str, body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
        with await self._http.request(method, path, body) as response:
            return self.decoded(await self._accepted(response), decoder)

    async def events(self, path: str, body: Mapping[str, Any]) -> "Events":
        """The server-sent events that answer `body`. Raises as `post` does."""
        response = await self._http.request("POST", path, msgspec.json.encode(body))
        if response.status == 200 and response.kind == "text/event-stream":
            return Events(self.url, response)
        with response:
            text = await self._accepted(response)
        raise EngineError(f"{self.url} answered with something else than a stream: {_shown(text)}")

    async def answers(self, path: str) -> bool:
        """Whether the server answers a GET of `path` with success, soon. Never raises."""
        try:
            async with asyncio.timeout(self._http.connect_timeout):
                with await self._http.request("GET", path) as response:
                    await response.read()
                    return response.status == 200
        except (EngineError, TimeoutError):
            return False

    def decoded(self, payload: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
        """A payload as `decoder`'s type. Raises EngineError if it is something else."""
        try:
            return decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EngineError(f"{self.url} sent what cannot be understood ({error}): {_shown(payload)}") from error

    async def _accepted(self, response: Response) -> bytes:
        """The body of a successful response; raises what another one means."""
        body = await response.read(self._largest)
        if response.status != 200:
            raise refusal(self.url, response.status, _words(body), response.retry_after)
        return body


class Events:
    """Server-sent events while they arrive. Used in a `with` block: to leave it early closes the connection, by which
    the server knows."""

    def __init__(self, url: str, response: Response) -> None:
        """Read the body of `response`, which the server at `url` has begun."""
        self._url = url
        self._response = response
        self._rest = b""

    def __enter__(self) -> "Events":
        """Close it at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()

    async def payloads(self) -> list[bytes]:
        """Those of the next events, as many as have arrived together; none at the end of the stream.

        Raises:
            EngineTimeout: nothing arrives for too long.
            EngineError: the stream breaks off, or is none.
        """
        while data := await self._response.some():
            *lines, self._rest = (self._rest + data).split(b"\n")
            if payloads := [line[5:].strip() for line in lines if line.startswith(b"data:")]:
                return payloads
            if len(self._rest) > _LONGEST_EVENT:
                raise EngineError(f"{self._url} streams something that is no event: {_shown(self._rest)}")
        return []


def refusal(url: str, status: int, words: str, retry_after: float | None = None) -> StepwellError:
    """What an answer with an HTTP status other than 200 means for the caller, who may `retry_after` so many seconds."""
    words = words or f"HTTP {status}"
    if status in (401, 403):
        return Refused(f"{url} refuses the API key (HTTP {status}); set its api_key: {words}", status)
    if status in (400, 413, 422):
        return ContextOverflow(words) if _OVERFLOW.search(words) else InvalidRequest(words)
    answered = f"{url} answered with HTTP {status}: {words}"
    return Refused(answered, status) if 300 <= status < 500 and status not in _PASSING else Busy(answered, retry_after)


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
