"""The embedded pool: one SQLite file in WAL mode."""

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from stepwell.errors import NotFound, PoolError
from stepwell.pool import migrations
from stepwell.pool.checkpoints import LONGEST, Checkpoints
from stepwell.pool.sql import SQLPool, Storage
from stepwell.pool.writer import storage_error

_LOCK_TIMEOUT: Final = 30.0  # seconds that a writer waits for the writer of another process
_PAGE: Final = 8192  # bytes: two long steps fit where one of 4096 would hold one and waste a third
_CACHE: Final = 32_768  # KiB of pages that the writer keeps; SQLite's own 2,000 do not hold one large batch
_WAL_ATTEMPTS: Final = 100
_NO_WRITING: Final = ("readonly database", "unable to open")


class SQLitePool(SQLPool):
    """A pool in one file, for any number of threads and of processes of one machine.

    Readers never wait. Writers of other processes take turns; one that waits for more than 30 s fails with PoolError.
    A full disk, a file that may not be written and damaged pages are PoolErrors with SQLite's own words: nothing of
    the call is stored, and what was acknowledged before stays so. A file on a network drive is no place for a pool.
    While the file is moved away, or another is in its place, whatever is asked is a PoolError.
    """

    @classmethod
    def open(cls, path: Path | str, *, read_only: bool = False, clock: Callable[[], float] = time.time) -> "SQLitePool":
        """Open the pool in the file `path`; make it, and its folder, if it is missing.

        Args:
            path: the SQLite file; `-wal` and `-shm` files beside it belong to it.
            read_only: refuse whatever writes; the file must exist. SQLite still needs to write beside it.
            clock: Unix time in seconds, by which leases expire. One that goes back makes leases last longer, no more.

        Raises:
            NotFound: `read_only`, and there is no such file.
            PoolError: the file cannot be opened, is not a pool, or was made by a newer Stepwell.
        """
        path = Path(path).absolute()
        if read_only and not _exists(path):
            raise NotFound(f"no pool at {path}")
        if not read_only:
            _make_folder(path)
        _prepare(path, read_only=read_only)
        check = partial(_check_place, path, _identity(path))
        reader = _engine(path, "ro", "BEGIN", check=check)
        writer = None if read_only else _engine(path, "rwc", "BEGIN IMMEDIATE", check=check)
        backup = partial(_backup, path)
        storage = Storage(
            name=path.name, reader=reader, writer=writer, passes=lambda _: False, clock=clock, backup=backup
        )
        return cls(storage, None if read_only else Checkpoints(_connect(path, "rw", references=False), path.name))

    def __init__(self, storage: Storage, checkpoints: Checkpoints | None) -> None:
        """Use `open`."""
        super().__init__(storage)
        self._checkpoints = checkpoints

    def close(self) -> None:
        """See `Pool.close`."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        super().close()


def _backup(path: Path, to: Path) -> None:
    """Copy the pool to a new file, which appears once it is whole."""
    if _exists(to):
        raise PoolError(f"{to} exists; a backup overwrites nothing")
    part = to.with_name(f"{to.name}.part")
    _make_folder(to)
    try:
        part.unlink(missing_ok=True)
        with closing(_connect(path, "ro", references=False)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(to)
    except (sqlite3.Error, OSError) as error:
        part.unlink(missing_ok=True)
        raise PoolError(f"cannot back {path.name} up to {to}: {error}") from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise PoolError(f"{path} cannot be reached: {error.strerror}") from error


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PoolError(f"cannot make the folder of {path}: {error.strerror}") from error


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another of the same name; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_place(path: Path, opened: tuple[int, int] | None) -> None:
    """What is written to a file that nobody finds any more is lost. Takes a microsecond. Raises PoolError."""
    if _identity(path) != opened:
        raise PoolError(f"{path.name}: the file was moved away or replaced while it was open: put it back, or restart")


def _engine(
    path: Path, mode: str, begin: str, *, references: bool = True, check: Callable[[], None] = lambda: None
) -> sa.Engine:
    """Connections to `path`, with a `check` before each is made and before each of its transactions.

    Those start with the statement `begin`, and check `references` of rows.
    """

    def connect() -> sqlite3.Connection:
        check()  # or else it would make a new, empty file
        return _connect(path, mode, references)

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool, max_overflow=-1)
    sa.event.listen(engine, "begin", partial(_begin, begin, check))
    return engine


def _begin(statement: str, check: Callable[[], None], connection: sa.Connection) -> None:
    """Straight to the driver: SQLAlchemy takes as long to pass it on as SQLite takes to store a step."""
    check()
    driver: Any = connection.connection.driver_connection
    try:
        driver.execute(statement)
    except sqlite3.Error as error:
        raise DBAPIError(statement, None, error) from error


def _connect(path: Path, mode: str, references: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = FULL")
    if mode == "rwc":
        connection.execute(f"PRAGMA cache_size = -{_CACHE}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LONGEST}")
    connection.execute(f"PRAGMA foreign_keys = {'ON' if references else 'OFF'}")
    return connection


def _prepare(path: Path, *, read_only: bool) -> None:
    failed = f"{path} cannot be opened as a pool"
    # A migration drops tables that refer to one another; to check that would take longer than all the rest.
    engine = _engine(path, "ro", "BEGIN") if read_only else _engine(path, "rwc", "BEGIN IMMEDIATE", references=False)
    try:
        if not read_only:
            _use_wal(path)
        with engine.connect() as connection, connection.begin():
            if read_only:
                migrations.verify(connection)
            else:
                migrations.prepare(connection, path.name)
    except sqlite3.Error as error:
        raise PoolError(f"{failed}: {error}{_hint(error)}") from error
    except SQLAlchemyError as error:
        raise storage_error(failed, error, _hint(error)) from error
    except PoolError as error:
        raise PoolError(f"{failed}: {error}") from error
    finally:
        engine.dispose()


def _hint(error: Exception) -> str:
    if not any(words in str(error) for words in _NO_WRITING):
        return ""
    return "; SQLite must be allowed to write the file and its folder, even to read: allow it, or copy it"


def _use_wal(path: Path) -> None:
    """Switch the file to WAL, which lasts; unlike other statements, this one does not wait for locks by itself."""
    with closing(_connect(path, "rwc", references=False)) as connection:
        for attempt in range(_WAL_ATTEMPTS):
            try:
                connection.execute(f"PRAGMA page_size = {_PAGE}")  # of a new file; others keep theirs
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or attempt == _WAL_ATTEMPTS - 1:
                    raise
                time.sleep(0.05)
