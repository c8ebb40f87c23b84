"""The HTTP client against servers of a few lines: what is reused, what is asked twice, what is given up."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from stepwell.engines import connection
from stepwell.engines.http import HttpClient, _seconds
from stepwell.errors import ConfigError, EngineError, EngineTimeout
from tests.fakes.servers import free_port

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """Answers one request after the other, by a script, each from whichever connection it comes."""

    script: list[Say]
    url: str = ""
    asked: list[tuple[int, bytes]] = field(default_factory=list)
    """Number of the connection, and all bytes of the request."""
    connections: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has closed a connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while request := await self._request(reader):
                self.asked.append((number, request))
                await self.script.pop(0)(writer)
            self.closed.set()
        except ConnectionError:
            self.closed.set()
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        return head + await reader.readexactly(length)


@asynccontextmanager
async def serving(*script: Say, secure: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    served = Server(list(script))
    listener = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=secure)
    port = listener.sockets[0].getsockname()[1]
    served.url = f"{'https' if secure else 'http'}://127.0.0.1:{port}"
    try:
        yield served
    finally:
        listener.close()


def saying(*parts: bytes, close: bool = False) -> Say:
    async def say(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()

    return say


def whole(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\n%bcontent-length: %d\r\n\r\n%b" % (
        more,
        len(body),
        body,
    )


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"


def client_of(server: Server, **patience: float) -> HttpClient:
    return HttpClient(server.url, {"X-Mine": "1"}, **patience)


async def text(client: HttpClient, method: str = "POST", body: bytes = b"ping") -> bytes:
    with await client.request(method, "/there", body) as response:
        assert response.status == 200
        return await response.read()


async def test_a_request_is_proper_http_and_its_answer_is_told() -> None:
    async with serving(saying(whole(b"pong"))) as server:
        client = HttpClient(f"{server.url}/base dir", {"X-Mine": "1"})
        with await client.request("POST", "/there", b"ping") as response:
            assert (response.status, response.kind, await response.read()) == (200, "text/plain", b"pong")
        head, _, body = server.asked[0][1].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /base%20dir/there HTTP/1.1\r\n")
        assert set(head.split(b"\r\n")[1:]) == {
            b"Host: " + server.url.removeprefix("http://").encode(),
            b"Accept-Encoding: identity",
            b"X-Mine: 1",
            b"Content-Length: 4",
        }
        assert body == b"ping"
        await client.aclose()


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with serving(*[saying(whole(b"%d" % i)) for i in range(3)]) as server:
        client = client_of(server)
        assert [await text(client) for _ in range(3)] == [b"0", b"1", b"2"]
        assert [number for number, _ in server.asked] == [1, 1, 1]
        await client.aclose()
        await asyncio.wait_for(server.closed.wait(), 10)


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async with serving(*[saying(whole(b"x"))] * 3) as server:
        client = client_of(server)
        assert await asyncio.gather(*(text(client) for _ in range(3))) == [b"x"] * 3
        assert server.connections == 3
        await client.aclose()


@pytest.mark.parametrize("rest", [b"", b"half"])
async def test_an_answer_that_is_not_read_to_its_end_closes_its_connection(rest: bytes) -> None:
    async with serving(saying(HEAD + rest), saying(whole(b"next"))) as server:
        client = client_of(server)
        with await client.request("GET", "/"):
            pass
        await asyncio.wait_for(server.closed.wait(), 10)
        assert await text(client) == b"next"
        assert server.connections == 2
        await client.aclose()


async def test_to_close_an_answer_twice_is_to_close_it_once() -> None:
    async with serving(*[saying(whole(b"x"))] * 3) as server:
        client = client_of(server)
        with await client.request("GET", "/") as response:
            await response.read()
            response.close()
        await asyncio.gather(text(client), text(client))
        assert server.connections == 2  # not both on the one that is kept
        await client.aclose()


async def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    heard = asyncio.Event()

    async def nothing(_: asyncio.StreamWriter) -> None:
        heard.set()

    async with serving(nothing) as server:
        asking = asyncio.create_task(client_of(server).request("GET", "/"))
        await asyncio.wait_for(heard.wait(), 10)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(server.closed.wait(), 10)


async def test_what_a_server_does_not_answer_on_a_kept_connection_is_asked_once_more() -> None:
    async with serving(saying(whole(b"one")), saying(close=True), saying(whole(b"two"))) as server:
        client = client_of(server)
        assert [await text(client), await text(client)] == [b"one", b"two"]
        assert [number for number, _ in server.asked] == [1, 1, 2]
        await client.aclose()


async def test_what_a_server_does_not_answer_on_a_new_connection_is_not_asked_again() -> None:
    async with serving(saying(close=True), saying(whole(b"never"))) as server:
        client = client_of(server)
        with pytest.raises(EngineError, match="closed the connection before its answer was complete"):
            await text(client)
        assert len(server.asked) == 1


async def test_an_answer_that_breaks_off_is_not_asked_for_again() -> None:
    async with serving(saying(whole(b"one")), saying(HEAD[:20], close=True), saying(whole(b"never"))) as server:
        client = client_of(server)
        await text(client)
        with pytest.raises(EngineError, match="closed the connection before its answer was complete"):
            await text(client)
        assert len(server.asked) == 2


async def test_an_idle_connection_is_not_used_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(*[saying(whole(b"x"))] * 2) as server:
        client = client_of(server)
        await text(client)
        monkeypatch.setattr(connection, "_KEPT", 0.0)
        await text(client)
        assert [number for number, _ in server.asked] == [1, 2]
        await client.aclose()


@pytest.mark.parametrize(
    "first",
    [
        whole(b"x", b"connection: close\r\n"),
        whole(b"x") + b"HTTP/1.1 200 OK\r\n",  # begins an answer that nobody asked for
        whole(b"x") + b"garbage",
    ],
)
async def test_a_connection_that_cannot_be_trusted_is_not_used_again(first: bytes) -> None:
    async with serving(saying(first), saying(whole(b"y"))) as server:
        client = client_of(server)
        assert [await text(client), await text(client)] == [b"x", b"y"]
        assert [number for number, _ in server.asked] == [1, 2]
        await client.aclose()


async def test_what_comes_while_nothing_is_asked_closes_the_connection() -> None:
    async def late(writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"x"))
        await writer.drain()
        await read.wait()
        writer.write(whole(b"stray"))

    read = asyncio.Event()
    async with serving(late, saying(whole(b"y"))) as server:
        client = client_of(server)
        assert await text(client) == b"x"
        read.set()
        await asyncio.wait_for(server.closed.wait(), 10)
        assert await text(client) == b"y"
        await client.aclose()


async def test_an_interim_answer_is_not_the_answer() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with serving(saying(b"HTTP/1.1 100 Continue\r\n\r\n", early, whole(b"x"))) as server:
        client = client_of(server)
        assert await text(client) == b"x"
        await client.aclose()


async def test_a_body_that_is_larger_than_anybody_wants_is_not_read_on() -> None:
    async with serving(saying(whole(b"x" * 1000)), saying(whole(b"x" * 1000))) as server:
        client = client_of(server)
        with await client.request("GET", "/") as response:
            assert await response.read(1000) == b"x" * 1000
        with await client.request("GET", "/") as response, pytest.raises(EngineError, match="more than the 999 bytes"):
            await response.read(999)
        await client.aclose()


@pytest.mark.parametrize(
    ("given_", "seconds"),
    [
        (b"7", 7.0),
        (b" 120 ", 120.0),
        (b"Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        (b"soon", None),
        (b"-1", None),
        (b"1e9", None),
        (b"nan", None),
        (b"", None),
    ],
)
async def test_a_server_says_when_to_ask_again_in_seconds_or_as_a_date(given_: bytes, seconds: float | None) -> None:
    async with serving(saying(whole(b"", b"Retry-After: %b\r\n" % given_))) as server:
        client = client_of(server)
        with await client.request("GET", "/") as response:
            assert response.retry_after == seconds
        await client.aclose()


@given(st.text(st.characters(max_codepoint=255)))
def test_whatever_a_server_says_there_is_a_number_of_seconds_or_nothing(said: str) -> None:
    seconds = _seconds(said)
    assert seconds is None or seconds >= 0


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with serving(saying(b"HTTP/1.1 200 OK\r\n\r\nto the ", b"end", close=True)) as server:
        assert await text(client_of(server)) == b"to the end"


async def test_an_answer_without_a_body_ends_with_its_head() -> None:
    async with serving(saying(b"HTTP/1.1 204 No Content\r\n\r\n"), saying(whole(b"x"))) as server:
        client = client_of(server)
        with await client.request("GET", "/") as response:
            assert (response.status, await response.read(), await response.some()) == (204, b"", b"")
        assert await text(client) == b"x"
        assert server.connections == 1
        await client.aclose()


@given(parts=st.lists(st.binary(min_size=1, max_size=300), max_size=6), chunked=st.booleans(), data=st.data())
def test_a_body_is_the_same_however_it_is_cut(parts: list[bytes], chunked: bool, data: st.DataObject) -> None:
    body = b"".join(parts)
    if chunked:
        sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        sent = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + sent
    else:
        sent = whole(body)
    cuts = data.draw(st.lists(st.integers(1, len(sent) - 1), max_size=6).map(sorted))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]

    async def run() -> None:
        async with serving(saying(*pieces)) as server:
            client = client_of(server)
            assert await text(client) == body
            await client.aclose()

    uvloop.run(run())  # which is what the gateway runs on


async def test_a_server_waits_for_a_reader_who_takes_his_time() -> None:
    blocks, block = 64, b"x" * 1024 * 1024

    async def much(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (blocks * len(block)))
        for _ in range(blocks):
            writer.write(block)
            await writer.drain()

    async with serving(much) as server:
        client = client_of(server)
        with await client.request("GET", "/") as response:
            for _ in range(500):
                await asyncio.sleep(0)
            taken = len(await response.some())
            assert taken < 4 * len(block)
            while part := await response.some():
                taken += len(part)
        assert taken == blocks * len(block)
        await client.aclose()


async def test_a_server_that_falls_silent_is_given_up() -> None:
    async with serving(saying(HEAD + b"half")) as server:
        client = client_of(server, idle_timeout=0.05)
        with await client.request("GET", "/") as response:
            assert await response.some() == b"half"
            with pytest.raises(EngineTimeout, match=r"sent nothing for 0.05 s \(idle_timeout\)"):
                await response.some()
        await asyncio.wait_for(server.closed.wait(), 10)


async def test_a_reader_who_takes_his_time_is_not_given_up() -> None:
    async with serving(saying(HEAD + b"x" * 99)) as server:
        client = client_of(server, idle_timeout=0.02)
        with await client.request("GET", "/") as response:
            await asyncio.sleep(0.1)
            assert await response.some() == b"x" * 99


async def test_a_connection_that_does_not_stand_in_time_is_given_up() -> None:
    async with serving() as server:  # it waits for a request, the client for its part of TLS
        client = HttpClient(server.url.replace("http:", "https:"), {}, connect_timeout=0.05)
        with pytest.raises(EngineTimeout, match=r"could not be reached within 0.05 s \(connect_timeout\)"):
            await client.request("GET", "/")


async def test_a_server_that_is_not_there_is_told() -> None:
    client = HttpClient(f"http://127.0.0.1:{free_port()}", {})
    with pytest.raises(EngineError, match=r"cannot be reached.*Is the server running there"):
        await client.request("GET", "/")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: other\r\nconnection: upgrade\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000,
    ],
)
async def test_what_is_not_http_is_told(answer: bytes) -> None:
    async with serving(saying(answer)) as server:
        with pytest.raises(EngineError, match="does not speak proper HTTP"):
            await text(client_of(server))


async def test_connections_that_are_closed_meanwhile_fail_and_new_ones_are_opened() -> None:
    async with serving(saying(HEAD + b"half"), saying(whole(b"x"))) as server:
        client = client_of(server)
        with await client.request("GET", "/") as response:
            assert await response.some() == b"half"
            await client.aclose()
            with pytest.raises(EngineError, match="closed the connection"):
                await response.read()
        assert await text(client) == b"x"
        await client.aclose()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of 127.0.0.1, signed by itself; its key is in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, cert, both = (tmp_path / name for name in ("key", "cert", "both"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += [
        "-keyout",
        key,
        "-out",
        cert,
        "-days",
        "2",
        "-subj",
        "/CN=test",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run(command, check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    return both


async def test_a_server_with_a_certificate_is_spoken_to_if_somebody_vouches_for_it(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(certificate)
    async with serving(saying(whole(b"one")), saying(whole(b"two")), secure=secure) as server:
        with pytest.raises(EngineError, match="CERTIFICATE_VERIFY_FAILED"):
            await text(client_of(server))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        client = client_of(server)
        assert [await text(client), await text(client)] == [b"one", b"two"]
        assert [number for number, _ in server.asked] == [server.asked[0][0]] * 2
        await client.aclose()


@pytest.mark.parametrize("url", ["http://", "http://there:port", "http://user:secret@there", "http://" + "a" * 70])
def test_a_url_that_is_none_is_refused_without_telling_a_password(url: str) -> None:
    with pytest.raises(ConfigError, match="URL of a server") as error:
        HttpClient(url, {})
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("value", ["key\n", "key\r\nX-Other: 1", "clé"])
def test_a_header_that_cannot_be_sent_is_refused_without_telling_it(value: str) -> None:
    with pytest.raises(ConfigError, match="Authorization must be printable ASCII") as error:
        HttpClient("http://there", {"Authorization": value})
    assert value not in str(error.value)
