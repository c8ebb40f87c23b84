"""A way to a server that breaks: it closes connections in the middle of answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Relay:
    """Passes connections on; of each answer only as many bytes as its turn in `budgets` says, all once those are used.

    `made` counts the connections.
    """

    def __init__(self, url: str, budgets: list[int]) -> None:
        place = urlsplit(url)
        assert place.hostname is not None
        assert place.port is not None
        self._server = (place.hostname, place.port)
        self._budgets = budgets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.made = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.made += 1
                budget = self._budgets.pop(0) if self._budgets else None
                far = socket.create_connection(self._server)
                threading.Thread(target=_pass, args=(near, far, None), daemon=True).start()
                threading.Thread(target=_pass, args=(far, near, budget), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _pass(source: socket.socket, sink: socket.socket, budget: int | None) -> None:
    """Copy until the source or the budget ends; then both sides see their connection end."""
    with suppress(OSError):
        while (data := source.recv(4096)) and budget != 0:
            part = data if budget is None else data[:budget]
            sink.sendall(part)
            budget = None if budget is None else budget - len(part)
            if budget == 0:
                break
    for side in (source, sink):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
        side.close()


@contextmanager
def relay(url: str, budgets: list[int]) -> Iterator[Relay]:
    """A relay for as long as the block lasts."""
    way = Relay(url, budgets)
    try:
        yield way
    finally:
        way.close()
