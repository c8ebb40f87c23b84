"""What is read from the pool: a few set-based SELECTs per question, the same for every database."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import sqlalchemy as sa

from stepwell.errors import NotFound
from stepwell.pool import codec, readiness
from stepwell.pool.base import ForkCount, PoolStats, TrajectorySummary
from stepwell.pool.schema import annotations, groups, meta, steps, trajectories, updates
from stepwell.types import Annotation, Group, Step, Trajectory, UpdateInfo

_CHUNK: Final = 5_000  # values bound per statement; the databases allow about 32,000

newest_cursor = sa.select(meta.c.value).where(meta.c.name == "cursor")

_trajectories = sa.select(trajectories, groups.c.id.label("group_id")).outerjoin(groups)
_annotations = sa.select(annotations, steps.c.id.label("step_id")).outerjoin(
    steps, annotations.c.step_cursor == steps.c.cursor
)


def select_in(
    connection: sa.Connection, statement: sa.Select[Any], column: sa.ColumnElement[Any], values: Sequence[object]
) -> Iterator[sa.Row[Any]]:
    """The rows of `statement` where `column` is one of `values`, however many; ordered only within a chunk of them."""
    for start in range(0, len(values), _CHUNK):
        yield from connection.execute(statement.where(column.in_(values[start : start + _CHUNK])))


def step(connection: sa.Connection, step_id: str) -> Step:
    """One step. Raises NotFound."""
    owner = sa.select(steps.c.cursor, steps.c.trajectory_cursor, trajectories.c.id).join(trajectories)
    found = connection.execute(owner.where(steps.c.id == step_id)).one_or_none()
    if found is None:
        raise NotFound(f"no step {step_id!r}")
    rows = connection.execute(
        sa.select(steps)
        .where(steps.c.trajectory_cursor == found.trajectory_cursor, steps.c.cursor <= found.cursor)
        .order_by(steps.c.cursor)
    ).all()
    unpacker = codec.StepUnpacker(found.id)
    return [unpacker.unpack(row) for row in _chain(rows)][-1]


def _chain(rows: Sequence[sa.Row[Any]]) -> list[sa.Row[Any]]:
    """The last of `rows` with the bases that it rests on, bases first."""
    by_cursor = {row.cursor: row for row in rows}
    chain = [rows[-1]]
    while (base := chain[-1].base_cursor) in by_cursor:
        chain.append(by_cursor[base])
    return chain[::-1]


def trajectory(connection: sa.Connection, trajectory_id: str) -> Trajectory:
    """One trajectory. Raises NotFound."""
    row = connection.execute(_trajectories.where(trajectories.c.id == trajectory_id)).one_or_none()
    if row is None:
        raise NotFound(f"no trajectory {trajectory_id!r}")
    return _folded(connection, [row])[0]


def group(connection: sa.Connection, group_id: str) -> Group:
    """One group with all its trajectories, in the order in which they were opened. Raises NotFound."""
    row = connection.execute(sa.select(groups).where(groups.c.id == group_id)).one_or_none()
    if row is None:
        raise NotFound(f"no group {group_id!r}")
    members = connection.execute(
        _trajectories.where(trajectories.c.group_cursor == row.cursor).order_by(trajectories.c.cursor)
    ).all()
    return Group(info=codec.group_info(row), trajectories=tuple(_folded(connection, members)))


def ready_groups(connection: sa.Connection, cursors: Sequence[int]) -> tuple[Group, ...]:
    """Ready groups as consumers get them: with the first `size` trajectories to complete, in that order."""
    rows = select_in(connection, sa.select(groups), groups.c.cursor, cursors)
    infos = {row.cursor: codec.group_info(row) for row in rows}
    complete = _complete_members(connection, cursors)
    chosen = [complete[cursor][: infos[cursor].size] for cursor in cursors]
    folded = iter(_folded(connection, [row for members in chosen for row in members]))
    return tuple(
        Group(info=infos[cursor], trajectories=tuple(next(folded) for _ in members))
        for cursor, members in zip(cursors, chosen, strict=True)
    )


def _complete_members(connection: sa.Connection, cursors: Sequence[int]) -> dict[int, list[sa.Row[Any]]]:
    of = trajectories.c
    in_order = _trajectories.where(of.complete_cursor.is_not(None)).order_by(of.complete_cursor, of.cursor)
    members: dict[int, list[sa.Row[Any]]] = defaultdict(list)
    for row in select_in(connection, in_order, of.group_cursor, cursors):
        members[row.group_cursor].append(row)
    return members


def summaries(connection: sa.Connection, before: int | None, limit: int) -> list[tuple[int, TrajectorySummary]]:
    """A page of the listing of trajectories, newest first, each with its cursor."""
    page = _trajectories.order_by(trajectories.c.cursor.desc()).limit(limit)
    if before is not None:
        page = page.where(trajectories.c.cursor < before)
    rows = connection.execute(page).all()
    notes = _annotations_of(connection, rows)
    return [(row.cursor, _summary(row, notes[row.cursor])) for row in rows]


def _summary(row: sa.Row[Any], notes: Sequence[Annotation]) -> TrajectorySummary:
    return TrajectorySummary(
        info=codec.trajectory_info(row),
        status=row.status,
        reward=readiness.total(readiness.standing_rewards(notes)),
        steps=row.steps,
        response_tokens=row.response_tokens,
        policy_version_min=row.policy_version_min,
        policy_version_max=row.policy_version_max,
    )


def all_updates(connection: sa.Connection, run: str | None) -> list[UpdateInfo]:
    """The updates of a run (None: of all runs), oldest first; of a version that was made again, the newest only."""
    newest = sa.select(sa.func.max(updates.c.cursor)).group_by(updates.c.run, updates.c.policy_version)
    statement = sa.select(updates).where(updates.c.cursor.in_(newest)).order_by(updates.c.cursor)
    if run is not None:
        statement = statement.where(updates.c.run == run)
    return [codec.update_info(row) for row in connection.execute(statement)]


def stats(connection: sa.Connection) -> PoolStats:
    """Counts of everything."""
    count, total = sa.func.count, sa.func.sum
    by_status = (
        sa.select(trajectories.c.status, count()).group_by(trajectories.c.status).order_by(trajectories.c.status)
    )
    grouped = connection.execute(sa.select(count(), count(groups.c.ready_cursor))).one()
    of = trajectories.c
    sums = sa.select(
        count(), count(of.reward_cursor), total(of.steps), total(of.prompt_tokens), total(of.response_tokens)
    )
    opened, rewarded, taken, prompt_tokens, response_tokens = connection.execute(sums).one()
    versions = sa.union_all(
        sa.select(sa.func.max(of.policy_version_max)), sa.select(sa.func.max(updates.c.policy_version))
    )
    return PoolStats(
        cursor=connection.scalars(newest_cursor).one(),
        groups=grouped[0],
        groups_ready=grouped[1],
        trajectories=opened,
        trajectories_by_status=tuple((row[0], row[1]) for row in connection.execute(by_status)),
        trajectories_rewarded=rewarded,
        steps=int(taken or 0),
        prompt_tokens=int(prompt_tokens or 0),
        response_tokens=int(response_tokens or 0),
        annotations=connection.scalar(sa.select(count()).select_from(annotations)) or 0,
        updates=connection.scalar(sa.select(count()).select_from(updates)) or 0,
        policy_version=max(version or 0 for version in connection.scalars(versions)),
    )


def forks(connection: sa.Connection) -> list[ForkCount]:
    """See `Pool.forks`."""
    side = steps.c.side != ""
    kinds = (steps.c.model, trajectories.c.agent, steps.c.fork, side)
    counted = sa.select(*kinds, sa.func.count()).join(trajectories, steps.c.trajectory_cursor == trajectories.c.cursor)
    rows = connection.execute(counted.where(steps.c.dialect != "").group_by(*kinds).order_by(*kinds))
    return [
        ForkCount(model=model, agent=agent, fork=fork, side=bool(beside), steps=count)
        for model, agent, fork, beside, count in rows
    ]


def _folded(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> list[Trajectory]:
    notes = _annotations_of(connection, rows)
    taken = _steps_of(connection, rows)
    return [readiness.fold(codec.trajectory_info(row), taken.get(row.cursor, ()), notes[row.cursor]) for row in rows]


def _steps_of(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> dict[int, list[Step]]:
    owners = {row.cursor: row.id for row in rows}
    in_order = sa.select(steps).order_by(steps.c.trajectory_cursor, steps.c.cursor)
    found = select_in(connection, in_order, steps.c.trajectory_cursor, list(owners))
    taken: dict[int, list[Step]] = {}
    for owner, own_rows in groupby(found, key=attrgetter("trajectory_cursor")):
        unpacker = codec.StepUnpacker(owners[owner])
        taken[owner] = [unpacker.unpack(row) for row in own_rows]
    return taken


def _annotations_of(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> dict[int, list[Annotation]]:
    owners = {row.cursor: row.id for row in rows}
    notes: dict[int, list[Annotation]] = defaultdict(list)
    in_order = _annotations.order_by(annotations.c.cursor)
    for row in select_in(connection, in_order, annotations.c.trajectory_cursor, list(owners)):
        notes[row.trajectory_cursor].append(codec.annotation(row, owners[row.trajectory_cursor]))
    return notes
