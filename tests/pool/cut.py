"""A TCP proxy in front of PostgreSQL that breaks connections at the one moment that leaves everybody in doubt."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

Moment = Literal["before the commit", "after the commit"]


class Cut:
    """Forwards connections to a server until `next_commit` says that one that writes is to break in its COMMIT."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = parts._replace(netloc=f"{parts.username}@127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        self.next_commit: Moment | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._server)
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError), client, server:
            writes = False  # a connection that only reads commits too, and nobody minds what becomes of that
            while data := client.recv(65536):
                writes = writes or b"FOR UPDATE" in data
                if writes and b"COMMIT\0" in data and self.next_commit is not None:
                    moment, self.next_commit = self.next_commit, None
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)  # it never hears what comes of it
                    if moment == "after the commit":
                        server.sendall(data)
                    server.shutdown(socket.SHUT_WR)
                    return
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cutting(url: str) -> Iterator[Cut]:
    """A proxy in front of the server at `url` for as long as the block lasts."""
    cut = Cut(url)
    try:
        yield cut
    finally:
        cut.close()
