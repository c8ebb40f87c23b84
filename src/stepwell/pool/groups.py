"""Groups that wait: settling those whose deadline has passed, and saying what is missing in the others."""

import sqlalchemy as sa

from stepwell.errors import Conflict, NotFound
from stepwell.pool import derived, ingest, readiness
from stepwell.pool.base import Refill
from stepwell.pool.schema import groups, trajectories, unsettled


def settle(connection: sa.Connection, now: float) -> int:
    """Decide on the groups whose deadline has passed: ready with what is complete, or dropped. Gives their number."""
    due = sa.select(groups.c.cursor, groups.c.size, groups.c.min_size).where(unsettled, groups.c.deadline <= now)
    waiting = connection.execute(due).all()
    if not waiting:
        return 0
    complete = derived.completions_of(connection, [row.cursor for row in waiting])
    cursor = ingest.draw_cursor(connection)
    for row in waiting:
        done = complete[row.cursor]
        members = readiness.handed_over(len(done), done) or ()
        if row.min_size is not None and len(members) >= row.min_size:
            derived.mark_ready(connection, [derived.ready_row(row.cursor, members, cursor)])
        else:
            reason = f"deadline: {len(done)} of {row.min_size or row.size} complete"
            connection.execute(sa.update(groups).where(groups.c.cursor == row.cursor).values(dropped=reason))
    return len(waiting)


def drop(connection: sa.Connection, group_id: str, reason: str) -> None:
    """See `Pool.drop_group`."""
    ingest.draw_cursor(connection)  # until this ends, no other writer completes it
    row = connection.execute(sa.select(groups.c.cursor, groups.c.ready_cursor).where(groups.c.id == group_id)).first()
    if row is None:
        raise NotFound(f"no group {group_id!r}")
    if row.ready_cursor is not None:
        raise Conflict(f"group {group_id!r} is ready: reject its trajectories, if nobody is to train on it")
    mine = sa.update(groups).where(groups.c.cursor == row.cursor, unsettled)
    connection.execute(mine.values(dropped=reason or "given up"))


def refills(connection: sa.Connection, channel: str | None) -> list[Refill]:
    """Of the groups of a channel (None: of all) that are neither ready nor dropped, those that lack trajectories."""
    of = trajectories.c
    alive = sa.func.count(sa.case((of.status != "failed", of.cursor)))
    failed = sa.func.count(sa.case((of.status == "failed", of.cursor)))
    statement = (
        sa.select(groups, alive.label("alive"), failed.label("failed"))
        .outerjoin(trajectories, of.group_cursor == groups.c.cursor)
        .where(unsettled)
        .group_by(groups.c.cursor)
        .having(alive < groups.c.size)
        .order_by(groups.c.cursor)
    )
    if channel is not None:
        statement = statement.where(groups.c.channel == channel)
    return [
        Refill(
            group_id=row.id,
            task_id=row.task_id,
            channel=row.channel,
            missing=row.size - row.alive,
            failed=row.failed,
            deadline=row.deadline,
        )
        for row in connection.execute(statement)
    ]
