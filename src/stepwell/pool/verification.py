"""Is the pool what it says? Every record is read and compared with its digest, every derived column with its fold."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from stepwell.errors import PoolError
from stepwell.pool import derived, listing, queries, readiness, rows
from stepwell.pool.base import Fault
from stepwell.pool.derived import DERIVED, TrajectoryState
from stepwell.pool.readiness import Facts
from stepwell.pool.schema import annotations, groups, meta, steps, tags, trajectories, updates
from stepwell.types import Annotation, Record, Step

_CHUNK: Final = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the log that is looked at in one transaction."""

    checked: int
    """Records in it."""
    faults: tuple[Fault, ...]
    after: int | None
    """Where the next part begins; None: there is none."""


def whole(connection: sa.Connection) -> tuple[Fault, ...]:
    """Faults of the database as such: damaged pages and indexes, a counter that lags behind, references to nothing."""
    return (*_file(connection), *_cursor(connection), *_references(connection))


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


def trajectories_after(connection: sa.Connection, after: int, *, repair: bool) -> Chunk:
    """Check some trajectories with all that belongs to them; `repair` needs a write transaction."""
    page = sa.select(trajectories).where(trajectories.c.cursor > after).order_by(trajectories.c.cursor).limit(_CHUNK)
    found = connection.execute(page).all()
    faults: list[Fault] = []
    checked = 0
    for row in found:
        count, own = _trajectory(connection, row, repair=repair)
        checked += count
        faults += own
    return Chunk(checked, tuple(faults), found[-1].cursor if len(found) == _CHUNK else None)


def _trajectory(connection: sa.Connection, row: sa.Row[Any], *, repair: bool) -> tuple[int, list[Fault]]:
    taken = connection.execute(
        sa.select(steps.c.cursor, steps.c.id, steps.c.digest)
        .where(steps.c.trajectory_cursor == row.cursor)
        .order_by(steps.c.cursor)
    ).all()
    said = connection.execute(
        sa.select(annotations).where(annotations.c.trajectory_cursor == row.cursor).order_by(annotations.c.cursor)
    ).all()
    there = {None, *(line.cursor for line in taken)}
    said = [line for line in said if line.step_cursor in there]  # `whole` finds those of which the step is gone
    faults: list[Fault] = []
    read: dict[int, Record] = {}
    for line in taken:  # one by one: a damaged step must not hide the others
        try:
            read[line.cursor] = queries.steps_at(connection, [line.cursor])[0]
        except PoolError as error:
            faults.append(Fault(kind="record", id=line.id, message=str(error), repairable=False))
    read |= listing.READERS["annotations"](connection, [line.cursor for line in said])
    read |= listing.READERS["trajectories"](connection, [row.cursor])
    for line in (row, *taken, *said):
        faults += _differs(line, read.get(line.cursor))
    if len(read) == 1 + len(taken) + len(said):
        faults += _derived(connection, row, read, said, repair=repair)
    return len(read), faults


def _differs(line: Any, record: Record | None) -> Iterator[Fault]:
    if record is not None and rows.draft(record).digest != line.digest:
        yield Fault(
            kind="record", id=line.id, message="its content is not what its digest was made of", repairable=False
        )


def _derived(
    connection: sa.Connection, row: sa.Row[Any], read: dict[int, Record], said: Sequence[sa.Row[Any]], *, repair: bool
) -> Iterator[Fault]:
    state = TrajectoryState(row.cursor, row.group_cursor, row.channel, facts=Facts())
    places = {line.cursor: line.step_cursor for line in said}
    for cursor, record in sorted(read.items()):
        if isinstance(record, Step):
            state.add_step(record)
        elif isinstance(record, Annotation):
            state.add_annotation(record, places[cursor], cursor)
    wrong = [name for name, value in zip(DERIVED, state.derived(), strict=True) if getattr(row, name) != value]
    labels = state.facts.tags if state.facts else ()
    found = connection.scalars(sa.select(tags.c.tag).where(tags.c.trajectory_cursor == row.cursor)).all()
    if wrong:
        yield Fault(kind="derived", id=row.id, message=f"{', '.join(wrong)} differ from its records", repairable=True)
    if set(found) != set(labels):
        yield Fault(
            kind="tags", id=row.id, message=f"has the tags {sorted(found)}, not {list(labels)}", repairable=True
        )
    if repair and (wrong or set(found) != set(labels)):
        derived.rewrite(connection, state)


def groups_after(connection: sa.Connection, after: int, *, repair: bool) -> Chunk:
    """Check some groups: whether they are ready, and since when."""
    page = sa.select(groups).where(groups.c.cursor > after).order_by(groups.c.cursor).limit(_CHUNK)
    found = connection.execute(page).all()
    complete = derived.completions_of(connection, [row.cursor for row in found])
    infos = listing.READERS["groups"](connection, [row.cursor for row in found])
    faults: list[Fault] = []
    for row in found:
        faults += _differs(row, infos[row.cursor])
        members = readiness.handed_over(row.size, complete[row.cursor])
        due = members[-1].cursor if members else None
        settled = row.deadline is not None and (row.dropped or row.ready_cursor is not None)
        if row.ready_cursor != due and not settled:
            message = f"it is ready since {row.ready_cursor}, by its records since {due}"
            faults.append(Fault(kind="derived", id=row.id, message=message, repairable=True))
            if repair:
                ready = derived.ready_row(row.cursor, members or (), due)
                derived.mark_ready(connection, [ready])
    return Chunk(len(found), tuple(faults), found[-1].cursor if len(found) == _CHUNK else None)


def updates_after(connection: sa.Connection, after: int, *, repair: bool) -> Chunk:  # noqa: ARG001 - one signature
    """Check some updates."""
    page = sa.select(updates).where(updates.c.cursor > after).order_by(updates.c.cursor).limit(_CHUNK)
    found = connection.execute(page).all()
    infos = listing.READERS["updates"](connection, [row.cursor for row in found])
    faults = tuple(fault for row in found for fault in _differs(row, infos[row.cursor]))
    return Chunk(len(found), faults, found[-1].cursor if len(found) == _CHUNK else None)


PARTS: Final[tuple[Callable[..., Chunk], ...]] = (trajectories_after, groups_after, updates_after)
"""All that has to be looked at, each part from cursor 0 on."""


def mend(connection: sa.Connection) -> None:
    """Make the indexes anew, and the counter right."""
    used = [connection.scalar(sa.select(sa.func.max(table.c.cursor))) or 0 for table in rows.TABLES.values()]
    counter = sa.update(meta).where(meta.c.name == "cursor", meta.c.value < max(used))
    connection.execute(counter.values(value=max(used)))
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("REINDEX")
