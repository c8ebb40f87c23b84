"""Moves what a WAL holds into its database, from time to time and beside the writer.

SQLite does that within the commit that finds the WAL long enough, which then takes tens of milliseconds instead of one.
A checkpoint of another connection holds up neither readers nor the writer.
"""

import contextlib
import sqlite3
import threading
from typing import Final

_EVERY: Final = 5.0
"""Seconds between two looks at whether there is something to move."""
LONGEST: Final = 16_384
"""Pages of a WAL from which on its writer moves them by itself: batches may come faster than this thread moves them."""


class Checkpoints:
    """A thread of its own, with a connection of its own."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        """Begin; `connection` is closed at the end."""
        self._connection = connection
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pool-checkpoints {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. Idempotent."""
        self._over.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        seen = None
        while not self._over.wait(_EVERY):
            # Whatever is wrong with the file, the writer finds out and says so.
            with contextlib.suppress(sqlite3.Error):
                version = self._connection.execute("PRAGMA data_version").fetchone()
                if version != seen:  # somebody committed
                    self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                    seen = version
