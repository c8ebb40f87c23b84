"""What the WAL holds is moved beside the writer, and nothing is lost by it."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from stepwell.pool import checkpoints
from stepwell.pool.checkpoints import Checkpoints


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(made)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE numbers (n INTEGER)")
        connection.commit()
    return made


def test_what_was_committed_reaches_the_database_without_its_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_EVERY", 0.01)
    moving = Checkpoints(sqlite3.connect(path, check_same_thread=False), "a")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("INSERT INTO numbers SELECT value FROM json_each('[1, 2, 3]')")
        writer.commit()
        deadline = time.monotonic() + 30
        while _moved(path) != 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _moved(path) == 3
        moving.close()
        moving.close()


def _moved(path: Path) -> int:
    """Rows that are in the database file itself: a copy of it without its WAL has no others."""
    copy = path.parent / "copy.sqlite"
    copy.write_bytes(path.read_bytes())
    try:
        with closing(sqlite3.connect(copy)) as connection:
            return int(connection.execute("SELECT count(*) FROM numbers").fetchone()[0])
    except sqlite3.DatabaseError:  # copied in the middle of a move
        return -1
