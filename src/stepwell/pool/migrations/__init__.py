"""The schema of a stored pool, brought up to date when the pool is opened for writing.

An empty database gets the tables of `stepwell.pool.schema` at once. One that an older Stepwell made runs through the
Alembic revisions in `versions/`, which end in the same tables; a test compares. Alembic itself is only imported then.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from stepwell.errors import PoolError
from stepwell.pool.schema import meta, metadata

REVISIONS: Final = ("0001", "0002", "0003", "0004")
"""All revisions of the schema, oldest first; one file in `versions/` each."""

_UNVERSIONED: Final = 2  # the `schema_version` that pools of the first revision had before there was Alembic
_OURS: Final = {"meta", "groups", "trajectories", "steps", "annotations", "updates", "leases", "deliveries"}
_TURN: Final = {
    # However long the upgrade of somebody else takes; the number is only used here.
    "postgresql": "SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(8242730051217)"
}
_version = sa.Table("alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True))
_log = logging.getLogger(__name__)


def prepare(connection: sa.Connection, name: str) -> None:
    """Make the tables in an empty database, or bring an older pool up to date, within the caller's transaction.

    Args:
        connection: in a transaction that may write. Others who open the same database wait for its end.
        name: the pool's, for the log.

    Raises:
        PoolError: the database belongs to something else, or to a newer Stepwell.
    """
    if _revision(connection) == REVISIONS[-1]:
        return
    if connection.dialect.name in _TURN:
        connection.exec_driver_sql(_TURN[connection.dialect.name])
    found = _revision(connection)  # perhaps another, now that it is our turn
    if found is None:
        _create(connection)
    elif found != REVISIONS[-1]:
        _log.warning("pool %s: upgrading its schema from revision %s to %s", name, found, REVISIONS[-1])
        _upgrade(connection, found)
        _log.warning("pool %s: upgraded", name)


def verify(connection: sa.Connection) -> None:
    """Check that the database holds a pool of the newest revision.

    Raises:
        PoolError: it is empty, belongs to something else or to a newer Stepwell, or has to be brought up to date.
    """
    found = _revision(connection)
    if found is None:
        raise PoolError("it is empty")
    if found != REVISIONS[-1]:
        raise PoolError(
            f"its schema is old ({found}, now {REVISIONS[-1]}); open it once for writing, which upgrades it"
        )


def _revision(connection: sa.Connection) -> str | None:
    """Of the pool in the database; None: the database is empty."""
    tables = set(sa.inspect(connection).get_table_names())
    if not tables:
        return None
    if not tables >= _OURS:
        raise PoolError("it is a database, but not of a Stepwell pool; choose another")
    if _version.name in tables:
        found = str(connection.scalar(sa.select(_version.c.version_num)))
    else:
        unversioned = connection.scalar(sa.select(meta.c.value).where(meta.c.name == "schema_version"))
        found = REVISIONS[0] if unversioned == _UNVERSIONED else f"version {unversioned}"
    if found not in REVISIONS:
        raise PoolError(f"its schema is {found}, this Stepwell reads up to {REVISIONS[-1]}; upgrade Stepwell")
    return found


def _create(connection: sa.Connection) -> None:
    metadata.create_all(connection)
    connection.execute(sa.insert(meta), [{"name": "cursor", "value": 0}])
    _version.create(connection)
    connection.execute(sa.insert(_version), [{"version_num": REVISIONS[-1]}])
    _keep_uncompressed(connection)


def _upgrade(connection: sa.Connection, found: str) -> None:
    # Alembic takes a tenth of a second to import, and is hardly ever needed
    from alembic.operations import Operations  # noqa: PLC0415
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    scripts, context = ScriptDirectory(str(Path(__file__).parent)), MigrationContext.configure(connection)
    with Operations.context(context):
        for script in reversed([*scripts.iterate_revisions(REVISIONS[-1], found)]):
            script.module.upgrade()
    context.stamp(scripts, REVISIONS[-1])
    if connection.dialect.name == "postgresql":
        for column in _columns():
            connection.execute(sa.schema.SetColumnComment(column))
    _keep_uncompressed(connection)


def _keep_uncompressed(connection: sa.Connection) -> None:
    """PostgreSQL need not try to compress what is compressed already."""
    if connection.dialect.name == "postgresql":
        for column in _columns():
            if isinstance(column.type, sa.LargeBinary):
                connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ALTER {column.name} SET STORAGE EXTERNAL")


def _columns() -> Iterator[sa.Column[Any]]:
    return (column for table in metadata.sorted_tables for column in table.c)
