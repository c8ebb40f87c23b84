"""Faults of the database as such: pages, indexes, the counter, references."""

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from stepwell.pool import rows
from stepwell.pool.base import Fault
from stepwell.pool.schema import annotations, groups, meta, steps, trajectories


def database_faults(connection: sa.Connection) -> tuple[Fault, ...]:
    """Damaged pages and indexes, a counter that lags behind, references to nothing or to somebody else's."""
    return (*_file(connection), *_cursor(connection), *_references(connection), *_strangers(connection))


def _file(connection: sa.Connection) -> Iterator[Fault]:
    if connection.dialect.name == "sqlite":
        for (message,) in connection.exec_driver_sql("PRAGMA integrity_check(100)"):
            if message != "ok":
                yield Fault(kind="file", id="", message=message, repairable="index" in message)


def _cursor(connection: sa.Connection) -> Iterator[Fault]:
    given = connection.scalar(sa.select(meta.c.value).where(meta.c.name == "cursor"))
    for table in rows.TABLES.values():
        used = connection.scalar(sa.select(sa.func.max(table.c.cursor))) or 0
        if given is None or used > given:
            yield Fault(kind="cursor", id="", message=f"{table.name} uses cursor {used}, over {given}", repairable=True)


_REFERENCES: Final = (
    (trajectories.c.group_cursor, groups),
    (steps.c.trajectory_cursor, trajectories),
    (annotations.c.trajectory_cursor, trajectories),
    (annotations.c.step_cursor, steps),
)
"""What refers to the cursor of another record; the base of a step is looked for when the step is read."""


def _references(connection: sa.Connection) -> Iterator[Fault]:
    for column, table in _REFERENCES:
        of = column.table
        missing = column.is_not(None) & ~sa.exists().where(table.c.cursor == column)
        for record_id in connection.scalars(sa.select(of.c.id).where(missing).order_by(of.c.cursor)):
            message = f"its {column.name}, in the table {of.name}, is that of no record"
            yield Fault(kind="record", id=record_id, message=message, repairable=False)


def _strangers(connection: sa.Connection) -> Iterator[Fault]:
    """Annotations of a step that belongs to another trajectory than they do."""
    other = (steps.c.cursor == annotations.c.step_cursor) & (
        steps.c.trajectory_cursor != annotations.c.trajectory_cursor
    )
    for record_id in connection.scalars(sa.select(annotations.c.id).join(steps, other).order_by(annotations.c.cursor)):
        message = "its step belongs to another trajectory than it does"
        yield Fault(kind="record", id=record_id, message=message, repairable=False)


def mend(connection: sa.Connection) -> None:
    """Make the indexes anew, and the counter right."""
    used = [connection.scalar(sa.select(sa.func.max(table.c.cursor))) or 0 for table in rows.TABLES.values()]
    counter = sa.update(meta).where(meta.c.name == "cursor", meta.c.value < max(used))
    connection.execute(counter.values(value=max(used)))
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("REINDEX")
