"""A server of a few bytes: it says what a test tells it to, then hangs up or falls silent."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def saying(answer: bytes, *, silent: bool = False) -> Iterator[str]:
    """Answer each request on loopback with these bytes, then hang up, or, if `silent`, wait for the client to.

    Yields the base URL.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while (line := self.rfile.readline().strip().lower()) != b"":
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.rfile.read(length)
            self.wfile.write(answer)
            if silent:
                self.rfile.read(1)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(timeout=10)


def http(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    """A whole HTTP answer."""
    return b"".join([_head(kind, status), f"Content-Length: {len(body)}\r\n\r\n".encode(), body])


def cut(body: bytes, kind: str = "text/event-stream") -> bytes:
    """An HTTP answer whose connection breaks off after `body`."""
    return b"".join([_head(kind, "200 OK"), b"Transfer-Encoding: chunked\r\n\r\n", _chunked(body)])


def stream(*events: str) -> bytes:
    """A whole stream of server-sent events."""
    body = "".join(f"data: {event}\n\n" for event in events).encode()
    return cut(body) + b"0\r\n\r\n"


def _head(kind: str, status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n".encode()


def _chunked(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"
