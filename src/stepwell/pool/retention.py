"""What may be forgotten: whole trajectories with all that belongs to them, never half of one."""

from typing import Any, Final

import sqlalchemy as sa

from stepwell.pool import filters
from stepwell.pool.keeping import Pruned, Retention
from stepwell.pool.schema import (
    annotations,
    dataset_units,
    deliveries,
    groups,
    leases,
    steps,
    tags,
    trajectories,
    updates,
)

CHUNK: Final = 256
"""Trajectories that are deleted in one transaction, groups aside, which are never torn."""


def doomed(connection: sa.Connection, retention: Retention, now: float) -> list[int]:
    """Cursors of the trajectories that go, oldest first; `now` is Unix time in seconds."""
    of = trajectories.c
    allowed = [] if retention.selection is None else filters.conditions(retention.selection, connection.dialect.name)
    limits = [*_limits(connection, retention, now)]
    by_age = [of.created_at < now - retention.max_age] if retention.max_age is not None else []
    waiting = sa.select(groups.c.cursor).where(groups.c.ready_cursor.is_(None), groups.c.dropped == "")
    free = sa.or_(of.group_cursor.is_(None), of.group_cursor.not_in(waiting), *by_age)
    statement = sa.select(of.cursor).where(free, of.cursor.not_in(_held(now)), *allowed).order_by(of.cursor)
    found = set(connection.scalars(statement.where(sa.or_(*limits)))) if limits else set()
    if retention.max_bytes is not None:
        found |= _over(connection, statement, retention.max_bytes)
    found -= _in_datasets(connection)
    return sorted(found - _in_torn_groups(connection, found))


def _limits(connection: sa.Connection, retention: Retention, now: float) -> list[filters.Condition]:
    of = trajectories.c
    limits: list[filters.Condition] = []
    if retention.all_selected:
        limits.append(sa.true())
    if retention.max_age is not None:
        limits.append(of.created_at < now - retention.max_age)
    if retention.max_lag is not None:
        newest = connection.scalar(sa.select(sa.func.max(updates.c.policy_version))) or 0
        limits.append(of.policy_version_max < newest - retention.max_lag)
    return limits


def _held(now: float) -> sa.Select[tuple[int]]:
    """Trajectories that some consumer holds now, alone or in a group."""
    held = sa.select(deliveries.c.unit_cursor).where(deliveries.c.free_at > now)
    return sa.select(trajectories.c.cursor).where(
        sa.or_(trajectories.c.cursor.in_(held), trajectories.c.group_cursor.in_(held))
    )


def _in_torn_groups(connection: sa.Connection, found: set[int]) -> set[int]:
    """Those of which another trajectory of the group stays: a group goes as a whole."""
    pairs = connection.execute(
        sa.select(trajectories.c.cursor, trajectories.c.group_cursor).where(trajectories.c.group_cursor.is_not(None))
    ).all()
    torn = {group for cursor, group in pairs if cursor not in found}
    return {cursor for cursor, group in pairs if group in torn}


def _in_datasets(connection: sa.Connection) -> set[int]:
    lists = connection.scalars(sa.select(dataset_units.c.members))
    return {int.from_bytes(blob[i : i + 8], "little") for blob in lists for i in range(0, len(blob), 8)}


_step_bytes = sum((sa.func.length(steps.c[name]) for name in ("tokens", "logprobs", "texts")), start=sa.literal(0))


def _over(connection: sa.Connection, candidates: sa.Select[Any], most: int) -> set[int]:
    """The oldest candidates whose going brings the records down to `most` bytes."""
    sizes = {int(row[0]): int(row[1]) for row in connection.execute(_sizes())}
    excess = sum(sizes.values()) - most
    gone: set[int] = set()
    for cursor in connection.scalars(candidates).all():
        if excess <= 0:
            break
        gone.add(cursor)
        excess -= sizes.get(cursor, 0)
    return gone


def _sizes() -> sa.Select[Any]:
    owner = steps.c.trajectory_cursor
    return sa.select(owner, sa.cast(sa.func.sum(_step_bytes), sa.BigInteger)).group_by(owner)


def measured(connection: sa.Connection, cursors: list[int]) -> Pruned:
    """What the trajectories at `cursors` hold."""
    counted = bytes_ = 0
    for start in range(0, len(cursors), CHUNK):
        chunk = cursors[start : start + CHUNK]
        row = connection.execute(
            sa.select(sa.func.count(), sa.func.sum(_step_bytes)).where(steps.c.trajectory_cursor.in_(chunk))
        ).one()
        counted, bytes_ = counted + row[0], bytes_ + int(row[1] or 0)
    return Pruned(trajectories=len(cursors), steps=counted, bytes=bytes_)


def batches(connection: sa.Connection, cursors: list[int]) -> list[list[int]]:
    """`cursors` in parts that are deleted one after the other; a group is in one part."""
    owner = sa.select(trajectories.c.cursor, trajectories.c.group_cursor).where(
        trajectories.c.group_cursor.is_not(None)
    )
    group_of = {int(row[0]): int(row[1]) for row in connection.execute(owner)}
    parts: list[list[int]] = [[]]
    last: object = None
    for cursor in sorted(cursors, key=lambda one: (group_of.get(one, one), one)):
        group = group_of.get(cursor)
        if len(parts[-1]) >= CHUNK and (group is None or group != last):
            parts.append([])
        parts[-1].append(cursor)
        last = group
    return [part for part in parts if part]


def forget(connection: sa.Connection, cursors: list[int]) -> None:
    """Delete these trajectories and all that belongs to them; groups that are empty then go too."""
    of_groups = set(
        connection.scalars(sa.select(trajectories.c.group_cursor).where(trajectories.c.cursor.in_(cursors)))
    )
    connection.execute(sa.delete(annotations).where(annotations.c.trajectory_cursor.in_(cursors)))
    connection.execute(sa.delete(tags).where(tags.c.trajectory_cursor.in_(cursors)))
    connection.execute(sa.delete(steps).where(steps.c.trajectory_cursor.in_(cursors)))
    connection.execute(sa.delete(deliveries).where(deliveries.c.unit_cursor.in_(cursors)))
    connection.execute(sa.delete(trajectories).where(trajectories.c.cursor.in_(cursors)))
    left = sa.select(trajectories.c.group_cursor).where(trajectories.c.group_cursor.in_(of_groups - {None}))
    empty = groups.c.cursor.in_(of_groups - {None}), groups.c.cursor.not_in(left)
    gone = sa.select(groups.c.cursor).where(*empty)
    connection.execute(sa.delete(deliveries).where(deliveries.c.unit_cursor.in_(gone)))
    connection.execute(sa.delete(groups).where(*empty))
    connection.execute(sa.delete(leases).where(leases.c.state != "held", leases.c.id.not_in(_leases_in_use())))


def _leases_in_use() -> sa.Select[tuple[str]]:
    return sa.select(deliveries.c.lease_id).where(deliveries.c.lease_id.is_not(None))
