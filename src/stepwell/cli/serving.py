"""A web application served from a thread of this process, for as long as a `with` block lasts."""

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from stepwell.errors import InvalidRequest


@contextmanager
def served(app: FastAPI, host: str = "127.0.0.1", port: int = 0, drain_seconds: float = 5.0) -> Iterator[str]:
    """Serve `app`; gives its URL. Port 0 takes a free one. At the end, calls under way get `drain_seconds`.

    Raises:
        InvalidRequest: the port is taken, or the server did not come up.
    """
    listener = _listen(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        proxy_headers=False,  # its log lines are written as all others are
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=round(drain_seconds),
    )
    server = uvicorn.Server(config)
    app.state.ending = lambda: server.should_exit  # what only waits for something new ends by itself then
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="stepwell-gateway", daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise InvalidRequest("the server stopped while it was starting; its log says why")
            time.sleep(0.01)
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def wait_for_interrupt(*, until_stdin_ends: bool = False) -> None:
    """Until Ctrl-C or SIGTERM, or else until the standard input ends, which it does when a parent process dies."""
    stop = threading.Event()
    signals = (signal.SIGTERM,) if until_stdin_ends else (signal.SIGINT, signal.SIGTERM)
    if until_stdin_ends:  # Ctrl-C reaches the parent too, which ends us in its time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_read_stdin, args=(stop.set,), daemon=True).start()
    for number in signals:
        signal.signal(number, lambda *_: stop.set())
    stop.wait()


def _read_stdin(then: Callable[[], None]) -> None:
    sys.stdin.read()
    then()


def check_port(port: int, host: str = "127.0.0.1") -> None:
    """Fail now rather than after minutes of preparation. Raises InvalidRequest if the port is taken."""
    _listen(host, port).close()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    with _listen(host, 0) as listener:
        return int(listener.getsockname()[1])


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise InvalidRequest(f"cannot listen on {host}:{port}: {error}; choose another with --port") from error
    listener.listen(1024)
    return listener
