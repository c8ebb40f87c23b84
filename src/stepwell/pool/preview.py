"""What a selection comes to: how many trajectories it wants, and which ready units it leaves to a new consumer.

All of it before the rules, which read whole trajectories: who wants to know what they do applies them to the units.
"""

from collections.abc import Sequence
from itertools import islice

import sqlalchemy as sa

from stepwell.curation.selection import Selection
from stepwell.pool import filters, queries
from stepwell.pool.candidates import Candidate, everything
from stepwell.pool.lease import LeaseSpec, ReadyCount, Unit
from stepwell.pool.schema import groups, trajectories
from stepwell.types import Group, new_id


def count(connection: sa.Connection, selection: Selection | None) -> int:
    """See `Pool.count`."""
    statement = sa.select(sa.func.count()).select_from(trajectories)
    if selection is not None:
        statement = statement.where(*filters.conditions(selection, connection.dialect.name))
    return connection.scalars(statement).one()


def ready(connection: sa.Connection, selection: Selection, unit: Unit) -> ReadyCount:
    """See `Pool.count_ready`. It counts what `units` lists, in the database."""
    wanted = filters.conditions(selection, connection.dialect.name)
    complete = trajectories.c.complete_cursor
    if unit == "trajectory":
        found = connection.scalars(sa.select(sa.func.count(complete)).where(*wanted)).one()
        return ReadyCount(found, found)
    of_task = [groups.c.task_id.in_(selection.task_ids)] if selection.task_ids else []
    kind = groups.c.origin_id == "" if unit == "group" else groups.c.origin_id != ""
    left = (
        sa.select(sa.func.count().label("members"))
        .select_from(groups.join(trajectories, trajectories.c.group_cursor == groups.c.cursor))
        .where(groups.c.ready_cursor.is_not(None), kind, complete <= groups.c.ready_cursor, *of_task, *wanted)
        .group_by(groups.c.cursor)
        .having(sa.func.count() >= sa.func.coalesce(groups.c.min_size, groups.c.size))
        .subquery()
    )
    row = connection.execute(sa.select(sa.func.count(), sa.func.sum(left.c.members)).select_from(left)).one()
    return ReadyCount(row[0], int(row[1] or 0))


def units(connection: sa.Connection, selection: Selection, unit: Unit, limit: int | None) -> list[Candidate]:
    """Units that are offered, those of the newest policy first; at most `limit`."""
    spec = LeaseSpec(consumer=new_id("preview"), unit=unit, selection=selection, order="freshest")
    return list(islice((one for one in everything(connection, spec) if not one.dropped), limit))


def whole(connection: sa.Connection, chosen: Sequence[Candidate], unit: Unit) -> tuple[Group, ...]:
    """These units with all their data."""
    return queries.units(connection, [(one.cursor, one.members) for one in chosen], single=unit == "trajectory")
