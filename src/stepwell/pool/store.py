"""The embedded pool: one SQLite file in WAL mode, one writer thread, any number of readers and of processes."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from stepwell.errors import InvalidRequest, NotFound, PoolError
from stepwell.pool import feed, queries, schema
from stepwell.pool.base import ForkCount, Lease, PoolStats, Receipt, TrajectorySummary
from stepwell.pool.writer import Writer, storage_error
from stepwell.types import Group, Record, Step, Trajectory, UpdateInfo

_T = TypeVar("_T")

_LOCK_TIMEOUT: Final = 30.0  # seconds that a writer waits for the writer of another process
_WAL_ATTEMPTS: Final = 100


class SQLitePool:
    """Meets `stepwell.pool.base.Pool`. Safe to use from many threads, and on one file from many processes.

    What a future of `append` resolved to is on disk: it survives the death of the process and of the machine.
    """

    def __init__(self, path: Path, reader: sa.Engine, writer: Writer | None, clock: Callable[[], float]) -> None:
        self._name = path.name  # for errors: they reach clients of a gateway, whom its folder does not concern
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._closed = False

    @classmethod
    def open(cls, path: Path | str, *, read_only: bool = False, clock: Callable[[], float] = time.time) -> "SQLitePool":
        """Open the pool in the file `path`; make it, and its folder, if it is missing.

        Args:
            path: the SQLite file; `-wal` and `-shm` files beside it belong to it.
            read_only: refuse whatever writes; the file must exist.
            clock: Unix time in seconds, by which leases expire.

        Raises:
            NotFound: `read_only`, and there is no such file.
            PoolError: the file cannot be opened, is not a pool, or was made by a newer Stepwell.
        """
        path = Path(path).absolute()
        if read_only and not path.exists():
            raise NotFound(f"no pool at {path}")
        if read_only:
            reader = _engine(path, "ro", "BEGIN")
            _prepare(path, reader, read_only=True)
            return cls(path, reader, None, clock)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PoolError(f"cannot make the folder of {path}: {error.strerror}") from error
        engine = _engine(path, "rwc", "BEGIN IMMEDIATE")
        _prepare(path, engine, read_only=False)
        return cls(path, _engine(path, "ro", "BEGIN"), Writer(engine, path.name), clock)

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """See `Pool.append`."""
        if self._writer is None:
            refused: Future[list[Receipt]] = Future()
            refused.set_exception(self._read_only())
            return refused
        return self._writer.append(records)

    def put(self, *records: Record) -> None:
        """See `Pool.put`."""
        for receipt in self.append(records).result():
            if receipt.error is not None:
                raise receipt.error

    def step(self, step_id: str) -> Step:
        """See `Pool.step`."""
        with self._reading() as connection:
            return queries.step(connection, step_id)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """See `Pool.trajectory`."""
        with self._reading() as connection:
            return queries.trajectory(connection, trajectory_id)

    def group(self, group_id: str) -> Group:
        """See `Pool.group`."""
        with self._reading() as connection:
            return queries.group(connection, group_id)

    def trajectories(self, *, before: int | None = None, limit: int = 50) -> list[tuple[int, TrajectorySummary]]:
        """See `Pool.trajectories`."""
        if limit < 1:
            raise InvalidRequest(f"limit must be at least 1, got {limit}")
        with self._reading() as connection:
            return queries.summaries(connection, before, limit)

    def updates(self, run: str | None = None) -> list[UpdateInfo]:
        """See `Pool.updates`."""
        with self._reading() as connection:
            return queries.all_updates(connection, run)

    def stats(self) -> PoolStats:
        """See `Pool.stats`."""
        with self._reading() as connection:
            return queries.stats(connection)

    def forks(self) -> list[ForkCount]:
        """See `Pool.forks`."""
        with self._reading() as connection:
            return queries.forks(connection)

    def lease(
        self,
        consumer: str,
        *,
        limit: int,
        seconds: float = 600.0,
        min_policy_version: int = 0,
        group_ids: Sequence[str] = (),
        channel: str | None = None,
    ) -> Lease:
        """See `Pool.lease`."""
        wish = feed.Wish(
            consumer=consumer,
            limit=limit,
            seconds=seconds,
            min_policy_version=min_policy_version,
            group_ids=tuple(group_ids),
            channel=channel,
        )
        claim = self._write(lambda connection: feed.claim(connection, wish, self._clock()))
        try:
            with self._reading() as connection:
                groups = queries.ready_groups(connection, claim.groups)
        except PoolError:
            self.release(claim.id)  # nobody knows of this lease, so nobody else will
            raise
        return Lease(id=claim.id, consumer=consumer, groups=groups, expires_at=claim.expires_at)

    def acknowledge(self, lease_id: str) -> None:
        """See `Pool.acknowledge`."""
        self._write(lambda connection: feed.acknowledge(connection, lease_id))

    def release(self, lease_id: str) -> None:
        """See `Pool.release`."""
        self._write(lambda connection: feed.release(connection, lease_id))

    def release_all(self, consumer: str) -> int:
        """See `Pool.release_all`."""
        return self._write(lambda connection: feed.release_all(connection, consumer))

    def close(self) -> None:
        """See `Pool.close`. Idempotent; whatever is asked of a closed pool is refused with PoolError."""
        self._closed = True
        self._reader.dispose()
        if self._writer is not None:
            self._writer.close()

    def _write(self, work: Callable[[sa.Connection], _T]) -> _T:
        if self._writer is None:
            raise self._read_only()
        try:
            return self._writer.call(work).result()
        except UnicodeEncodeError as error:
            raise _no_such_text(error) from error

    def _read_only(self) -> PoolError:
        return PoolError(f"{self._name} was opened read-only")

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """A connection that sees one state of the pool, however many SELECTs it is asked."""
        if self._closed:
            raise PoolError(f"{self._name}: the pool is closed")
        try:
            with self._reader.connect() as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise storage_error(self._name, error) from error
        except UnicodeEncodeError as error:
            raise _no_such_text(error) from error


def _no_such_text(error: UnicodeEncodeError) -> NotFound:
    return NotFound(f"{error.object!r} holds a lone surrogate; nothing in a pool is called that")


def _engine(path: Path, mode: str, begin: str) -> sa.Engine:
    """Connections to `path` whose transactions start with the statement `begin`."""
    engine = sa.create_engine(
        "sqlite://", creator=lambda: _connect(path, mode), poolclass=sa.QueuePool, max_overflow=-1
    )
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _prepare(path: Path, engine: sa.Engine, *, read_only: bool) -> None:
    try:
        if not read_only:
            _use_wal(path)
        with engine.connect() as connection, connection.begin():
            if not read_only:
                schema.prepare(connection)
            elif not schema.verify(connection):
                raise PoolError("it is empty")
    except sqlite3.Error as error:
        raise PoolError(f"{path} cannot be opened as a pool: {error}") from error
    except SQLAlchemyError as error:
        raise storage_error(f"{path} cannot be opened as a pool", error) from error
    except PoolError as error:
        raise PoolError(f"{path} cannot be opened as a pool: {error}") from error


def _use_wal(path: Path) -> None:
    """Switch the file to WAL, which lasts; unlike other statements, this one does not wait for locks by itself."""
    with closing(_connect(path, "rwc")) as connection:
        for attempt in range(_WAL_ATTEMPTS):
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or attempt == _WAL_ATTEMPTS - 1:
                    raise
                time.sleep(0.05)
