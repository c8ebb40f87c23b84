"""Every record is read and compared with its digest, every derived column with the fold of the records.

One by one where something is wrong: a damaged record must not hide the others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from stepwell.errors import StepwellError
from stepwell.pool import derived, listing, queries, readiness, rows
from stepwell.pool.base import Fault
from stepwell.pool.derived import DERIVED, TrajectoryState
from stepwell.pool.readiness import Facts
from stepwell.pool.schema import annotations, groups, steps, tags, trajectories, updates
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


_TRAJECTORY: Final = (
    *(trajectories.c[name] for name in ("cursor", "id", "digest", "group_cursor", "channel", *DERIVED)),
    groups.c.channel.label("group_channel"),
)


def trajectories_after(connection: sa.Connection, after: int, *, repair: bool) -> Chunk:
    """Check some trajectories with all that belongs to them; `repair` needs a write transaction."""
    page = (
        sa.select(*_TRAJECTORY)
        .outerjoin(groups, groups.c.cursor == trajectories.c.group_cursor)
        .where(trajectories.c.cursor > after)
        .order_by(trajectories.c.cursor)
        .limit(_CHUNK)
    )
    found = connection.execute(page).all()
    faults: list[Fault] = []
    checked = 0
    for row in found:
        count, own = _trajectory(connection, row, repair=repair)
        checked += count
        faults += own
    return Chunk(checked, tuple(faults), found[-1].cursor if len(found) == _CHUNK else None)


def _trajectory(connection: sa.Connection, row: sa.Row[Any], *, repair: bool) -> tuple[int, list[Fault]]:
    taken = _lines(connection, steps, steps.c.trajectory_cursor == row.cursor)
    said = _lines(connection, annotations, annotations.c.trajectory_cursor == row.cursor, annotations.c.step_cursor)
    there = {None, *(line.cursor for line in taken)}
    said = [line for line in said if line.step_cursor in there]  # the others are faults of the database
    read, faults = _records(connection, _read_steps, taken)
    for name, lines in (("annotations", said), ("trajectories", [row])):
        more, wrong = _records(connection, listing.READERS[name], lines)
        read, faults = read | more, faults + wrong
    for line in (row, *taken, *said):
        faults += _differs(line, read.get(line.cursor))
    if len(read) == 1 + len(taken) + len(said):
        faults += _derived(connection, row, read, said, repair=repair)
    return len(read), faults


def _lines(
    connection: sa.Connection, table: sa.Table, which: sa.ColumnElement[bool], *more: sa.Column[Any]
) -> list[sa.Row[Any]]:
    """Of some records only what cannot be damaged text: the text is read with the record."""
    chosen = sa.select(table.c.cursor, table.c.id, table.c.digest, *more)
    return list(connection.execute(chosen.where(which).order_by(table.c.cursor)))


_Read = Callable[[sa.Connection, Sequence[int]], dict[int, Any]]


def _read_steps(connection: sa.Connection, cursors: Sequence[int]) -> dict[int, Any]:
    return dict(zip(cursors, queries.steps_at(connection, cursors), strict=True)) if cursors else {}


def _records(connection: sa.Connection, read: _Read, lines: Sequence[Any]) -> tuple[dict[int, Record], list[Fault]]:
    """The records at `lines` by cursor, and a fault for each that cannot be made of what is stored."""
    found: dict[int, Record] = {}
    faults: list[Fault] = []
    for line in lines:
        try:
            found |= read(connection, [line.cursor])
        except (StepwellError, TypeError, ValueError, KeyError, OperationalError) as error:
            if isinstance(error, OperationalError) and "decode" not in str(error).lower():
                raise  # the database, not the record
            message = f"it cannot be read: {getattr(error, 'orig', None) or error}"
            faults.append(Fault(kind="record", id=line.id, message=message, repairable=False))
    return found, faults


def _differs(line: Any, record: Record | None) -> Iterator[Fault]:
    if record is not None and rows.draft(record).digest != line.digest:
        yield Fault(
            kind="record", id=line.id, message="its content is not what its digest was made of", repairable=False
        )


def _derived(
    connection: sa.Connection, row: sa.Row[Any], read: dict[int, Record], said: Sequence[sa.Row[Any]], *, repair: bool
) -> Iterator[Fault]:
    channel = row.group_channel or "default"
    state = TrajectoryState(row.cursor, row.group_cursor, channel, facts=Facts())
    places = {line.cursor: line.step_cursor for line in said}
    for cursor, record in sorted(read.items()):
        if isinstance(record, Step):
            state.add_step(record)
        elif isinstance(record, Annotation):
            state.add_annotation(record, places[cursor], cursor)
    wrong = [name for name, value in zip(DERIVED, state.derived(), strict=True) if getattr(row, name) != value]
    wrong += ["channel"] if row.channel != channel else []
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
        own = sa.update(trajectories).where(trajectories.c.cursor == row.cursor)
        connection.execute(own.values(channel=channel))


_GROUP: Final = ("cursor", "id", "digest", "size", "deadline", "dropped", "ready_cursor", "ready_version")


def groups_after(connection: sa.Connection, after: int, *, repair: bool) -> Chunk:
    """Check some groups: whether they are ready, since when, and of which version."""
    page = sa.select(*(groups.c[name] for name in _GROUP)).where(groups.c.cursor > after)
    found = connection.execute(page.order_by(groups.c.cursor).limit(_CHUNK)).all()
    complete = derived.completions_of(connection, [row.cursor for row in found])
    infos, faults = _records(connection, listing.READERS["groups"], found)
    for row in found:
        faults += _differs(row, infos.get(row.cursor))
        settled = row.dropped or (row.deadline is not None and row.ready_cursor is not None)
        if row.cursor not in infos or settled:
            continue  # by a deadline, or by somebody who gave it up: no record tells of that
        members = readiness.handed_over(row.size, complete[row.cursor])
        due = derived.ready_row(row.cursor, members or (), members[-1].cursor if members else None)
        if (row.ready_cursor, row.ready_version) != (due["ready_cursor"], due["ready_version"]):
            message = f"it is ready since {row.ready_cursor}, version {row.ready_version}; by its records since "
            message += f"{due['ready_cursor']}, version {due['ready_version']}"
            faults.append(Fault(kind="derived", id=row.id, message=message, repairable=True))
            if repair:
                derived.mark_ready(connection, [due])
    return Chunk(len(found), tuple(faults), found[-1].cursor if len(found) == _CHUNK else None)


def updates_after(connection: sa.Connection, after: int, *, repair: bool) -> Chunk:  # noqa: ARG001 - one signature
    """Check some updates."""
    page = sa.select(updates.c.cursor, updates.c.id, updates.c.digest).where(updates.c.cursor > after)
    found = connection.execute(page.order_by(updates.c.cursor).limit(_CHUNK)).all()
    infos, faults = _records(connection, listing.READERS["updates"], found)
    faults += [fault for row in found for fault in _differs(row, infos.get(row.cursor))]
    return Chunk(len(found), tuple(faults), found[-1].cursor if len(found) == _CHUNK else None)
