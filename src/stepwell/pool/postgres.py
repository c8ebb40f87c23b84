"""The pool of many machines: one PostgreSQL database, reached through psycopg 3."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from stepwell.errors import InvalidRequest, PoolError
from stepwell.pool import migrations
from stepwell.pool.patience import PATIENCE, Patience
from stepwell.pool.sql import SQLPool, Storage
from stepwell.pool.writer import storage_error

_READERS: Final = 16
_CONNECT: Final = {
    # What libpq calls them, in seconds: a machine that vanished is found out within half a minute.
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
_SESSION: Final = (
    # What was acknowledged is on disk, also where the server's default would trade that for speed.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
    "SET lock_timeout = '30s'",
    # Who vanished or froze in the midst of its turn loses it before those who wait for theirs give up.
    "SET idle_in_transaction_session_timeout = '20s'",
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
)
_HINT: Final = "; the server must run, the database must exist (createdb), and the user must be allowed to use it"
_TURN: Final = "SELECT value FROM meta WHERE name = 'cursor' FOR UPDATE"
_NOW: Final = "SELECT extract(epoch FROM clock_timestamp())"
_PASSING: Final = (
    "08",  # connection exceptions
    "40",  # this transaction was chosen to give way: a deadlock, a serialisation failure
    "53300",  # too many connections
    "57P",  # the server shuts down, crashed, or is still starting
    "25P03",  # it was idle for too long within a transaction
    "25006",  # it only reads: one that stands by, until it is promoted
)


class PostgresPool(SQLPool):
    """A pool in one database, for any number of threads, processes and machines that write at the same time.

    Write transactions take turns: each locks the counter of the log first, so they neither deadlock nor see half of one
    another. A server that restarts, or is away for up to 30 s, only makes operations wait: what was not committed is
    done again, and so is what nobody knows the fate of, since all operations are idempotent by id. After that they fail
    with PoolError until it is back.

    Unless `clock` is given, leases expire by the server's clock, whatever those of the machines say.
    """

    @classmethod
    def open(
        cls,
        url: str,
        *,
        read_only: bool = False,
        clock: Callable[[], float] | None = None,
        patience: float = PATIENCE,
    ) -> "PostgresPool":
        """Open the pool in the database at `url`; make its tables if the database is empty.

        Args:
            url: `postgresql://user@host:5432/database`, with libpq's parameters after `?`. The password is better kept
                in `~/.pgpass` or `PGPASSWORD`. Tables are in the first schema of the role's `search_path`.
            read_only: refuse whatever writes; there must be a pool.
            clock: Unix time in seconds, by which leases expire; None: the server's.
            patience: seconds that operations wait for a server that is away. Opening does not wait.

        Raises:
            InvalidRequest: `url` is none.
            PoolError: the server does not let us in, or the database holds something else, or the pool of a newer
                Stepwell.
        """
        address = _address(url)
        name = f"PostgreSQL database {address.database or ''}".rstrip()
        reader = _reader(address)
        writer = None if read_only else _writer(address)
        try:
            _prepare(name, reader, writer)
        except PoolError as error:
            reader.dispose()
            shown = address.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
            raise PoolError(f"{shown} cannot be opened as a pool: {error}") from error
        clock = clock or _server_clock(reader, name, Patience(name, passes, patience))
        storage = Storage(
            name=name, reader=reader, writer=writer, passes=passes, clock=clock, backup=_no_backup, patience=patience
        )
        return cls(storage)


def _no_backup(to: Path) -> None:
    raise InvalidRequest(f"PostgreSQL makes its own backups while it runs: pg_dump --format=custom --file={to} URL")


def passes(error: SQLAlchemyError) -> bool:
    """Whether another try may overcome `error`: the server is away, or chose this transaction to give way."""
    cause = getattr(error, "orig", None)
    if not isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
        return False
    return cause.sqlstate is None or cause.sqlstate.startswith(_PASSING)  # none: there was no server to give one


def _address(url: str) -> sa.URL:
    try:
        address = sa.make_url(url).set(drivername="postgresql+psycopg")
    except (sa.exc.ArgumentError, ValueError) as error:
        raise InvalidRequest(
            "the pool's URL is malformed; it is written postgresql://user@host:5432/database"
        ) from error
    return address.update_query_dict({name: value for name, value in _CONNECT.items() if name not in address.query})


def _reader(address: sa.URL) -> sa.Engine:
    return sa.create_engine(
        address,
        pool_size=_READERS,
        max_overflow=0,
        isolation_level="REPEATABLE READ",
        execution_options={"postgresql_readonly": True},
    )


def _writer(address: sa.URL) -> sa.Engine:
    engine = sa.create_engine(address, poolclass=sa.NullPool, isolation_level="READ COMMITTED")
    sa.event.listen(engine, "connect", _set_up)
    return engine


def _set_up(connection: psycopg.Connection, _: object) -> None:
    connection.execute("; ".join(_SESSION))
    connection.commit()


def _prepare(name: str, reader: sa.Engine, writer: sa.Engine | None) -> None:
    try:
        with (writer or reader).connect() as connection, connection.begin():
            if writer is None:
                migrations.verify(connection)
            else:
                migrations.prepare(connection, name)
    except SQLAlchemyError as error:
        raise storage_error("the server refuses", error, _HINT) from error
    if writer is not None:
        sa.event.listen(writer, "begin", lambda connection: connection.exec_driver_sql(_TURN))


def _server_clock(reader: sa.Engine, name: str, patience: Patience) -> Callable[[], float]:
    def ask() -> float:
        with reader.connect() as connection:
            return float(connection.exec_driver_sql(_NOW).scalar_one())

    def now() -> float:
        try:
            return patience.run(ask)
        except SQLAlchemyError as error:
            raise storage_error(name, error) from error

    return now
