"""A real HTTP server on loopback for the length of a test."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve `app` on a free port in a thread; yields the base URL without a path."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def wait_until(condition) -> None:
    """Return as soon as `condition()` holds; what a test waits for happens in another thread."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def free_port() -> int:
    """A port of loopback on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
