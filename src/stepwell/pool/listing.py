"""Looking through the pool: pages of what a selection wants, and the log from any place on."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from stepwell.curation.selection import Selection
from stepwell.errors import NotFound
from stepwell.pool import filters, queries
from stepwell.pool.base import KINDS, GroupSummary, RecordKind, TrajectorySummary
from stepwell.pool.outline import StepOutline
from stepwell.pool.rows import TABLES, annotation, group_info, trajectory_info, update_info
from stepwell.pool.schema import annotations, groups, steps, trajectories, updates
from stepwell.types import Annotation, Record, Step, Trajectory

_OUTLINE: Final = (
    *("parent_id", "fork", "side", "finish_reason", "policy_version_min", "policy_version_max"),
    *("prompt_tokens", "response_tokens", "created_at", "latency"),
)
"""The columns that `StepOutline` has besides, by the same names."""


def page(
    connection: sa.Connection, selection: Selection | None, before: int | None, limit: int
) -> list[tuple[int, TrajectorySummary]]:
    """See `Pool.trajectories`."""
    statement = queries.trajectory_rows.order_by(trajectories.c.cursor.desc()).limit(limit)
    if selection is not None:
        statement = statement.where(*filters.conditions(selection, connection.dialect.name))
    if before is not None:
        statement = statement.where(trajectories.c.cursor < before)
    return [(row.cursor, _summary(row)) for row in connection.execute(statement)]


def _summary(row: sa.Row[Any]) -> TrajectorySummary:
    return TrajectorySummary(
        info=trajectory_info(row),
        channel=row.channel,
        status=row.status,
        reward=row.reward,
        verdict=row.verdict,
        steps=row.steps,
        prompt_tokens=row.prompt_tokens,
        response_tokens=row.response_tokens,
        policy_version_min=row.policy_version_min,
        policy_version_max=row.policy_version_max,
    )


def wanted(
    connection: sa.Connection, selection: Selection, after: int, limit: int
) -> tuple[list[Trajectory], int | None]:
    """Up to `limit` whole trajectories that were opened after the cursor `after`, oldest first; and where to go on."""
    statement = (
        sa.select(trajectories.c.cursor)
        .where(trajectories.c.cursor > after, *filters.conditions(selection, connection.dialect.name))
        .order_by(trajectories.c.cursor)
        .limit(limit)
    )
    cursors = list(connection.scalars(statement))
    return queries.trajectories_at(connection, cursors), cursors[-1] if cursors else None


def group_page(
    connection: sa.Connection, channel: str | None, origin: str | None, before: int | None, limit: int
) -> list[tuple[int, GroupSummary]]:
    """See `Pool.groups`."""
    of, count = trajectories.c, sa.func.count
    members = (
        count(of.cursor).label("members"),
        count(of.complete_cursor).label("complete"),
        count(sa.case((of.status == "failed", of.cursor))).label("failed"),
    )
    chosen = sa.select(groups.c.cursor).order_by(groups.c.cursor.desc()).limit(limit)
    if channel is not None:
        chosen = chosen.where(groups.c.channel == channel)
    if origin is not None:
        chosen = chosen.where(groups.c.origin_id == origin)
    if before is not None:
        chosen = chosen.where(groups.c.cursor < before)
    statement = (
        sa.select(groups, *members)
        .outerjoin(trajectories, of.group_cursor == groups.c.cursor)
        .where(groups.c.cursor.in_(chosen.subquery().select()))
        .group_by(groups.c.cursor)
        .order_by(groups.c.cursor.desc())
    )
    return [(row.cursor, _group_summary(row)) for row in connection.execute(statement)]


def _group_summary(row: sa.Row[Any]) -> GroupSummary:
    return GroupSummary(
        info=group_info(row),
        state="dropped" if row.dropped else "open" if row.ready_cursor is None else "ready",
        why=row.dropped,
        trajectories=row.members,
        complete=row.complete,
        failed=row.failed,
        policy_version_min=row.ready_version,
    )


def outline(connection: sa.Connection, trajectory_id: str) -> list[StepOutline]:
    """See `Pool.outline`."""
    of = steps.c
    columns = (of.id, of.position.label("index"), *(of[name] for name in _OUTLINE))
    own = sa.select(trajectories.c.cursor).where(trajectories.c.id == trajectory_id).scalar_subquery()
    rows = connection.execute(sa.select(*columns).where(of.trajectory_cursor == own).order_by(of.position))
    return [StepOutline(**row._mapping) for row in rows]


def steps_from(connection: sa.Connection, trajectory_id: str, first: int, limit: int) -> list[Step]:
    """See `Pool.steps`."""
    of = steps.c
    own = sa.select(trajectories.c.cursor).where(trajectories.c.id == trajectory_id).scalar_subquery()
    wanted = sa.select(of.cursor).where(of.trajectory_cursor == own, of.position >= first).order_by(of.position)
    found = queries.steps_at(connection, list(connection.scalars(wanted.limit(limit))))
    return sorted(found, key=lambda step: step.index)


def log(
    connection: sa.Connection, after: int, limit: int, kinds: Sequence[RecordKind], channel: str | None
) -> list[tuple[int, Record]]:
    """See `Pool.log`."""
    tables = [TABLES[KINDS[kind]] for kind in dict.fromkeys(kinds or KINDS)]
    near = [
        sa.select(table.c.cursor, sa.literal(table.name).label("kind")).where(
            table.c.cursor > after, *([_of_channel(table, channel)] if channel is not None else [])
        )
        for table in tables
    ]
    cheap = [part.order_by(part.selected_columns[0]).limit(limit).subquery().select() for part in near]
    union = sa.union_all(*cheap).subquery()
    found = connection.execute(sa.select(union).order_by(union.c.cursor).limit(limit)).all()
    records: dict[int, Record] = {}
    for name, read in READERS.items():
        records |= read(connection, [row.cursor for row in found if row.kind == name])
    return [(row.cursor, records[row.cursor]) for row in found]


def _of_channel(table: sa.Table, channel: str) -> sa.ColumnElement[bool]:
    if table is updates:
        return table.c.run == channel
    if table in (steps, annotations):  # correlated: a look-up per record, not a list of the whole channel
        owner = trajectories.c.cursor == table.c.trajectory_cursor
        return sa.exists().where(owner, trajectories.c.channel == channel)
    return table.c.channel == channel


def notes(connection: sa.Connection, trajectory_id: str) -> list[Annotation]:
    """See `Pool.notes`."""
    cursor = connection.scalar(sa.select(trajectories.c.cursor).where(trajectories.c.id == trajectory_id))
    if cursor is None:
        raise NotFound(f"no trajectory {trajectory_id!r}")
    rows = connection.execute(
        queries.note_rows.where(annotations.c.trajectory_cursor == cursor).order_by(annotations.c.cursor)
    )
    return [annotation(row) for row in rows]


def _read_groups(connection: sa.Connection, cursors: Sequence[int]) -> dict[int, Record]:
    found = queries.select_in(connection, sa.select(groups), groups.c.cursor, cursors)
    return {row.cursor: group_info(row) for row in found}


def _read_trajectories(connection: sa.Connection, cursors: Sequence[int]) -> dict[int, Record]:
    found = queries.select_in(connection, queries.trajectory_rows, trajectories.c.cursor, cursors)
    return {row.cursor: trajectory_info(row) for row in found}


def _read_steps(connection: sa.Connection, cursors: Sequence[int]) -> dict[int, Record]:
    return dict(zip(sorted(cursors), queries.steps_at(connection, cursors), strict=True))


def _read_annotations(connection: sa.Connection, cursors: Sequence[int]) -> dict[int, Record]:
    found = queries.select_in(connection, queries.note_rows, annotations.c.cursor, cursors)
    return {row.cursor: annotation(row) for row in found}


def _read_updates(connection: sa.Connection, cursors: Sequence[int]) -> dict[int, Record]:
    found = queries.select_in(connection, sa.select(updates), updates.c.cursor, cursors)
    return {row.cursor: update_info(row) for row in found}


READERS: Final = {
    "groups": _read_groups,
    "trajectories": _read_trajectories,
    "steps": _read_steps,
    "annotations": _read_annotations,
    "updates": _read_updates,
}
"""Records by their cursors, of each table of the log."""
