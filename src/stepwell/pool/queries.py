"""What is read from the pool: a few set-based SELECTs per question, the same for every database."""

import operator
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from stepwell.errors import NotFound
from stepwell.pool import readiness
from stepwell.pool.base import ForkCount, PoolStats
from stepwell.pool.prepared import LookUp
from stepwell.pool.rows import annotation, group_info, trajectory_info, update_info
from stepwell.pool.schema import annotations, datasets, groups, meta, steps, trajectories, updates
from stepwell.pool.tokens import unpack
from stepwell.types import Annotation, Group, GroupInfo, Step, Trajectory, UpdateInfo

_CHUNK: Final = 5_000  # values bound per statement; the databases allow about 32,000

newest_cursor = sa.select(meta.c.value).where(meta.c.name == "cursor")

trajectory_rows = sa.select(trajectories, groups.c.id.label("group_id")).outerjoin(
    groups, trajectories.c.group_cursor == groups.c.cursor
)
_trajectories_named = LookUp(trajectory_rows, trajectories.c.id)
_groups_named = LookUp(sa.select(groups), groups.c.id)
_steps = sa.select(steps, trajectories.c.id.label("trajectory_id")).join(
    trajectories, steps.c.trajectory_cursor == trajectories.c.cursor
)
_of_trajectories = LookUp(_steps, steps.c.trajectory_cursor)
_in_order: Final = operator.attrgetter("trajectory_cursor", "cursor")
note_rows = (
    sa.select(annotations, steps.c.id.label("step_id"), trajectories.c.id.label("trajectory_id"))
    .join(trajectories, annotations.c.trajectory_cursor == trajectories.c.cursor)
    .outerjoin(steps, annotations.c.step_cursor == steps.c.cursor)
)
"""Annotations with the ids of what they are about."""
_notes_of = LookUp(note_rows.order_by(annotations.c.cursor), annotations.c.trajectory_cursor)


def select_in(
    connection: sa.Connection, statement: sa.Select[Any], column: sa.ColumnElement[Any], values: Sequence[object]
) -> Iterator[sa.Row[Any]]:
    """The rows of `statement` where `column` is one of `values`, however many; ordered only within a chunk of them."""
    for start in range(0, len(values), _CHUNK):
        yield from connection.execute(statement.where(column.in_(values[start : start + _CHUNK])))


def step(connection: sa.Connection, step_id: str) -> Step:
    """One step. Raises NotFound."""
    found = connection.scalar(sa.select(steps.c.cursor).where(steps.c.id == step_id))
    if found is None:
        raise NotFound(f"no step {step_id!r}")
    return steps_at(connection, [found])[0]


def steps_at(connection: sa.Connection, cursors: Sequence[int]) -> list[Step]:
    """The steps at these cursors, in the order of the cursors."""
    unpacked: dict[int, Step] = {}
    for start in range(0, len(cursors), _CHUNK):
        asked = sa.select(steps.c.cursor).where(steps.c.cursor.in_(cursors[start : start + _CHUNK]))
        chain = asked.cte("chain", recursive=True)
        bases = sa.select(steps.c.base_cursor).join(chain, steps.c.cursor == chain.c.cursor)
        chain = chain.union(bases.where(steps.c.base_cursor.is_not(None)))
        in_order = _steps.where(steps.c.cursor.in_(sa.select(chain.c.cursor)))
        rows = connection.execute(in_order.order_by(steps.c.trajectory_cursor, steps.c.cursor)).all()
        unpacked.update(zip((row.cursor for row in rows), unpack(rows), strict=True))
    return [unpacked[cursor] for cursor in sorted(set(cursors)) if cursor in unpacked]


def trajectory(connection: sa.Connection, trajectory_id: str) -> Trajectory:
    """One trajectory. Raises NotFound."""
    rows = list(_trajectories_named.rows(connection, [trajectory_id]))
    if not rows:
        raise NotFound(f"no trajectory {trajectory_id!r}")
    return _folded(connection, rows)[0]


def info_of_group(connection: sa.Connection, group_id: str) -> GroupInfo:
    """What is known of a group itself. Raises NotFound."""
    return group_info(_group_row(connection, group_id))


def _group_row(connection: sa.Connection, group_id: str) -> Any:
    for row in _groups_named.rows(connection, [group_id]):
        return row
    raise NotFound(f"no group {group_id!r}")


def group(connection: sa.Connection, group_id: str) -> Group:
    """One group with all its trajectories, in the order in which they were opened. Raises NotFound."""
    row = _group_row(connection, group_id)
    members = connection.execute(
        trajectory_rows.where(trajectories.c.group_cursor == row.cursor).order_by(trajectories.c.cursor)
    ).all()
    return Group(info=group_info(row), trajectories=tuple(_folded(connection, members)))


def units(connection: sa.Connection, wanted: Sequence[tuple[int, Sequence[int]]], *, single: bool) -> tuple[Group, ...]:
    """What consumers get: groups by (cursor, cursors of the members), in that order; `single`: each is a trajectory."""
    members = [cursor for _, cursors in wanted for cursor in cursors]
    found = {row.cursor: row for row in select_in(connection, trajectory_rows, trajectories.c.cursor, members)}
    folded = iter(_folded(connection, [found[cursor] for cursor in members]))
    lists = [tuple(next(folded) for _ in cursors) for _, cursors in wanted]
    if single:
        return tuple(
            _group_of_one(one, found[cursor].channel) for (cursor, _), (one,) in zip(wanted, lists, strict=True)
        )
    rows = select_in(connection, sa.select(groups), groups.c.cursor, [cursor for cursor, _ in wanted])
    infos = {row.cursor: group_info(row) for row in rows}
    return tuple(
        Group(info=infos[cursor], trajectories=taken) for (cursor, _), taken in zip(wanted, lists, strict=True)
    )


def trajectories_at(connection: sa.Connection, cursors: Sequence[int]) -> list[Trajectory]:
    """The trajectories at these cursors, in the order of `cursors`."""
    found = {row.cursor: row for row in select_in(connection, trajectory_rows, trajectories.c.cursor, cursors)}
    return _folded(connection, [found[cursor] for cursor in cursors])


def _group_of_one(trajectory: Trajectory, channel: str) -> Group:
    info = trajectory.info
    alone = GroupInfo(id=info.id, task_id=info.task_id, size=1, channel=channel, created_at=info.created_at)
    return Group(info=alone, trajectories=(trajectory,))


def all_updates(connection: sa.Connection, run: str | None) -> list[UpdateInfo]:
    """The updates of a run (None: of all runs), oldest first; of a version that was made again, the newest only."""
    newest = sa.select(sa.func.max(updates.c.cursor)).group_by(updates.c.run, updates.c.policy_version)
    statement = sa.select(updates).where(updates.c.cursor.in_(newest)).order_by(updates.c.cursor)
    if run is not None:
        statement = statement.where(updates.c.run == run)
    return [update_info(row) for row in connection.execute(statement)]


def stats(connection: sa.Connection) -> PoolStats:
    """Counts of everything."""
    count, of = sa.func.count, trajectories.c
    dropped = sa.select(groups.c.dropped, count()).where(groups.c.dropped != "").group_by(groups.c.dropped)
    grouped = connection.execute(sa.select(count(), count(groups.c.ready_cursor))).one()
    sums = [sa.func.sum(column) for column in (of.steps, of.prompt_tokens, of.response_tokens)]
    figures = (of.status, count(), count(of.reward_cursor), sa.func.max(of.policy_version_max), *sums)
    by_status = connection.execute(sa.select(*figures).group_by(of.status).order_by(of.status)).all()
    learnt = connection.scalar(sa.select(sa.func.max(updates.c.policy_version)))
    return PoolStats(
        cursor=connection.scalars(newest_cursor).one(),
        groups=grouped[0],
        groups_ready=grouped[1],
        groups_dropped=tuple((row[0], row[1]) for row in connection.execute(dropped)),
        trajectories=sum(row[1] for row in by_status),
        trajectories_by_status=tuple((row[0], row[1]) for row in by_status),
        trajectories_rewarded=sum(row[2] for row in by_status),
        steps=sum(int(row[4]) for row in by_status),
        prompt_tokens=sum(int(row[5]) for row in by_status),
        response_tokens=sum(int(row[6]) for row in by_status),
        annotations=connection.scalar(sa.select(count()).select_from(annotations)) or 0,
        updates=connection.scalar(sa.select(count()).select_from(updates)) or 0,
        policy_version=max([learnt or 0, *(row[3] or 0 for row in by_status)]),
    )


def forks(connection: sa.Connection, after: int, until: int | None) -> list[ForkCount]:
    """See `Pool.forks`."""
    side = steps.c.side != ""
    kinds = (steps.c.model, trajectories.c.agent, steps.c.fork, side)
    counted = sa.select(*kinds, sa.func.count()).join(trajectories, steps.c.trajectory_cursor == trajectories.c.cursor)
    wanted = [steps.c.dialect != "", steps.c.cursor > after, *([] if until is None else [steps.c.cursor <= until])]
    rows = connection.execute(counted.where(*wanted).group_by(*kinds).order_by(*kinds))
    return [
        ForkCount(model=model, agent=agent, fork=fork, side=bool(beside), steps=count)
        for model, agent, fork, beside, count in rows
    ]


def _folded(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> list[Trajectory]:
    notes = _annotations_of(connection, rows)
    taken = _steps_of(connection, rows)
    return [readiness.fold(trajectory_info(row), taken.get(row.cursor, ()), notes[row.cursor]) for row in rows]


def _steps_of(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> dict[int, list[Step]]:
    found = sorted(_of_trajectories.rows(connection, [row.cursor for row in rows]), key=_in_order)
    taken: dict[int, list[Step]] = defaultdict(list)
    for row, one in zip(found, unpack(found), strict=True):
        taken[row.trajectory_cursor].append(one)
    return taken


def _annotations_of(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> dict[int, list[Annotation]]:
    notes: dict[int, list[Annotation]] = defaultdict(list)
    for row in _notes_of.rows(connection, [row.cursor for row in rows]):
        notes[row.trajectory_cursor].append(annotation(row))
    return notes


def dataset_row(connection: sa.Connection, name: str) -> sa.Row[Any]:
    """The row of the dataset `name`, of its newest version, or of `name@version`. Raises NotFound."""
    wanted, _, version = name.partition("@")
    statement = sa.select(datasets).where(datasets.c.name == wanted).order_by(datasets.c.version.desc()).limit(1)
    if version:
        known = version.isdecimal() and len(version) < 19  # a longer one no database can hold
        statement = statement.where(datasets.c.version == (int(version) if known else -1))
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"no dataset {name!r}; `stepwell pool dataset ls` lists them")
    return row
