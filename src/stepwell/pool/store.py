"""Where a pool is kept decides which store it is: a path is an SQLite file, a URL names its database."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from stepwell.errors import InvalidRequest, MissingDependency
from stepwell.pool.sql import SQLPool
from stepwell.pool.sqlite import SQLitePool

__all__ = ["SQLitePool", "open_pool", "without_password"]

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")


def open_pool(location: str | Path, *, read_only: bool = False, clock: Callable[[], float] | None = None) -> SQLPool:
    """Open the pool at `location`; make it if it is missing.

    Args:
        location: path of an SQLite file, `sqlite:///PATH`, or `postgresql://user@host:5432/database`.
        read_only: refuse whatever writes; the pool must exist.
        clock: Unix time in seconds, by which leases expire; None: the machine's, or the PostgreSQL server's.

    Raises:
        InvalidRequest: it is a URL of another kind, or malformed.
        MissingDependency: PostgreSQL's driver is not installed.
        NotFound: `read_only`, and there is no such file.
        PoolError: it cannot be opened, holds something else, or the pool of a newer Stepwell.
    """
    place = str(location)
    if place.startswith(_POSTGRES):
        return _open_postgres(place, read_only=read_only, clock=clock)
    if "://" in place and not place.startswith(_SQLITE):
        raise InvalidRequest(
            f"a pool is kept at a path, sqlite:///PATH or postgresql://…, not at {place.split(':')[0]}:"
        )
    return SQLitePool.open(place.removeprefix(_SQLITE), read_only=read_only, clock=clock or time.time)


def without_password(location: str | Path) -> str:
    """`location` as it may be shown: nobody needs to see the password of a database."""
    place = str(location)
    if not place.startswith(_POSTGRES):
        return place
    return sa.make_url(place).set(query={}).render_as_string(hide_password=True)  # it may be in the query as well


def _open_postgres(url: str, *, read_only: bool, clock: Callable[[], float] | None) -> SQLPool:
    try:
        from stepwell.pool.postgres import PostgresPool  # noqa: PLC0415  # an extra: SQLite needs no driver
    except ImportError as error:
        raise MissingDependency("a pool in PostgreSQL needs its driver: pip install 'stepwell[postgres]'") from error
    return PostgresPool.open(url, read_only=read_only, clock=clock)
