"""Which units a consumer may be given, in the order that it asks for, and which it will never get, with the reason."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import numpy as np
import sqlalchemy as sa

from stepwell.pool import filters
from stepwell.pool.lease import LeaseSpec, Unit
from stepwell.pool.queries import dataset_row, newest_cursor, select_in
from stepwell.pool.schema import dataset_units, deliveries, frontiers, groups, trajectories
from stepwell.types import Verdict

REJECTED: Final = "rejected"
"""Reason of a drop: a person said so."""
STALE: Final = "stale"
"""Reason of a drop: its oldest token lies too many policy versions back."""
_FIRST_CHUNK: Final = 64
_PRIME: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One unit: what would be handed over, or why nothing of it ever is."""

    cursor: int
    """Of the group, or of the trajectory."""
    members: tuple[int, ...]
    """Cursors of the trajectories, in the order in which they became complete."""
    steps: int
    tokens: int
    dropped: str = ""
    """Why this consumer will not get it; empty: it may."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Other trajectories of the group, and why they are not handed over with it."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Where units of one kind lie in the schema, under the same names for groups and trajectories."""

    table: sa.Table
    joined: Any
    ready: sa.ColumnElement[Any]
    version: sa.ColumnElement[Any]
    priority: sa.ColumnElement[Any]
    kind: Sequence[filters.Condition] = field(default=())


_SOURCES: Final[Mapping[Unit, _Source]] = {
    "group": _Source(
        groups, groups, groups.c.ready_cursor, groups.c.ready_version, groups.c.priority, [groups.c.origin_id == ""]
    ),
    "siblings": _Source(
        groups, groups, groups.c.ready_cursor, groups.c.ready_version, groups.c.priority, [groups.c.origin_id != ""]
    ),
    "trajectory": _Source(
        trajectories,
        trajectories.outerjoin(groups, trajectories.c.group_cursor == groups.c.cursor),
        trajectories.c.complete_cursor,
        trajectories.c.policy_version_min,
        sa.func.coalesce(groups.c.priority, 0.0),
    ),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """Ready units that a consumer neither has nor had in this epoch."""

    unit: Unit
    candidates: Iterator[Candidate]


def offered(connection: sa.Connection, spec: LeaseSpec, floor: int, now: float) -> Offer:
    """What the consumer may be given; `floor` is the oldest policy version that is fresh, `now` Unix time in seconds.

    Raises:
        NotFound: there is no such dataset.
    """
    frozen = _dataset(connection, spec.dataset) if spec.dataset else None
    unit = frozen.unit if frozen else spec.unit
    source = _SOURCES[unit]
    statement = _free(source, spec, now, connection.dialect.name).order_by(*_order(source, spec))
    if frozen:
        listed = sa.select(dataset_units.c.unit_cursor).where(*frozen.rows)
        statement = statement.where(source.table.c.cursor.in_(listed))
    else:
        statement = statement.where(source.ready > _frontier(connection, source, spec))
    return Offer(unit, _judged(connection, spec, floor, statement, frozen))


def waiting(connection: sa.Connection, spec: LeaseSpec, now: float) -> Iterator[Candidate]:
    """What `offered` has for a spec without a dataset, whatever its policy version; nothing is written."""
    source = _SOURCES[spec.unit]
    done = connection.scalar(sa.select(frontiers.c.cursor).where(*_frontier_key(spec)))
    statement = _free(source, spec, now, connection.dialect.name).where(source.ready > (done or 0))
    return _judged(connection, spec, 0, statement.order_by(*_order(source, spec)), None)


def everything(connection: sa.Connection, spec: LeaseSpec) -> Iterator[Candidate]:
    """All units that a new consumer would be offered, whatever their policy version."""
    statement = _free(_SOURCES[spec.unit], spec, 0.0, connection.dialect.name)
    return _judged(connection, spec, 0, statement.order_by(*_order(_SOURCES[spec.unit], spec)), None)


def _judged(
    connection: sa.Connection, spec: LeaseSpec, floor: int, statement: sa.Select[Any], frozen: "_Dataset | None"
) -> Iterator[Candidate]:
    judge = _trajectory_units if (frozen.unit if frozen else spec.unit) == "trajectory" else _group_units
    for chunk in _chunks(connection, statement):
        yield from judge(connection, spec, floor, chunk, frozen.members(connection, chunk) if frozen else None)


def _chunks(connection: sa.Connection, statement: sa.Select[Any]) -> Iterator[list[int]]:
    """Cursors, a growing number at a time: most leases want few, and some databases send all rows of a SELECT."""
    offset, size = 0, _FIRST_CHUNK
    while chunk := list(connection.scalars(statement.offset(offset).limit(size))):
        yield chunk
        offset, size = offset + size, size * 2


def _free(source: _Source, spec: LeaseSpec, now: float, dialect: str) -> sa.Select[Any]:
    """Units of the right kind that are ready and that the consumer may be given."""
    mine = _of_consumer(source, spec)
    free = sa.or_(deliveries.c.unit_cursor.is_(None), deliveries.c.free_at <= now)
    joined = source.joined.outerjoin(deliveries, mine)
    # Rejected ones come too, so that they are dropped and counted, and not looked at again by every lease.
    single = spec.selection_given.model_copy(update={"verdicts": get_args(Verdict)})
    wanted = _group_conditions(spec) if source.table is groups else filters.conditions(single, dialect)
    return sa.select(source.table.c.cursor).select_from(joined).where(*_ready(source, spec), free, *wanted)


def _of_consumer(source: _Source, spec: LeaseSpec) -> filters.Condition:
    return sa.and_(
        deliveries.c.unit_cursor == source.table.c.cursor,
        deliveries.c.consumer == spec.consumer,
        deliveries.c.epoch == spec.epoch,
    )


def _ready(source: _Source, spec: LeaseSpec) -> list[filters.Condition]:
    channel = spec.selection_given.channel
    return [
        source.ready.is_not(None),
        *source.kind,
        *([source.table.c.channel == channel] if channel is not None else []),
    ]


def _group_conditions(spec: LeaseSpec) -> list[filters.Condition]:
    """What can be said of a group without its members; they are asked for the rest."""
    selection = spec.selection_given
    return [
        *([groups.c.task_id.in_(selection.task_ids)] if selection.task_ids else []),
        *([groups.c.id.in_(selection.group_ids)] if selection.group_ids else []),
    ]


def _order(source: _Source, spec: LeaseSpec) -> tuple[Any, ...]:
    cursor = source.table.c.cursor
    if spec.order == "freshest":
        return (sa.func.coalesce(source.version, -1).desc(), source.ready.desc(), cursor.desc())
    if spec.order == "priority":
        return (source.priority.desc(), source.ready, cursor)
    if spec.order == "random":
        # A square modulo a prime: the same on every database, and it does not show where the unit came from.
        place = (cursor * 48_271 + spec.seed % _PRIME * 69_621 + 1) % _PRIME
        return (place * place % _PRIME, cursor)
    return (source.ready, cursor)


def _frontier(connection: sa.Connection, source: _Source, spec: LeaseSpec) -> int:
    """The place in the log up to which the consumer is done with every unit; moved on from where it was."""
    own = _frontier_own(spec)
    key = _frontier_key(spec)
    before = connection.scalar(sa.select(frontiers.c.cursor).where(*key))
    pending = sa.or_(deliveries.c.unit_cursor.is_(None), deliveries.c.free_at.is_not(None))
    first = connection.scalar(
        sa.select(source.ready)
        .select_from(source.joined.outerjoin(deliveries, _of_consumer(source, spec)))
        .where(*_ready(source, spec), source.ready > (before or 0), pending)
        .order_by(source.ready)
        .limit(1)
    )
    after = connection.scalars(newest_cursor).one() if first is None else int(first) - 1
    if before is None:
        connection.execute(sa.insert(frontiers), [{**own, "cursor": after}])
    elif after > before:
        connection.execute(sa.update(frontiers).where(*key).values(cursor=after))
    return after


def _frontier_own(spec: LeaseSpec) -> dict[str, str | int]:
    return {
        "consumer": spec.consumer,
        "epoch": spec.epoch,
        "unit": spec.unit,
        "channel": spec.selection_given.channel or "",
    }


def _frontier_key(spec: LeaseSpec) -> list[filters.Condition]:
    return [frontiers.c[name] == value for name, value in _frontier_own(spec).items()]


_member_columns = (
    trajectories.c.cursor,
    trajectories.c.group_cursor,
    trajectories.c.steps,
    (trajectories.c.prompt_tokens + trajectories.c.response_tokens).label("tokens"),
    trajectories.c.policy_version_min,
    trajectories.c.verdict,
)


def _group_units(
    connection: sa.Connection, spec: LeaseSpec, floor: int, chunk: Sequence[int], listed: set[int] | None
) -> Iterator[Candidate]:
    sizes = {row.cursor: row for row in select_in(connection, sa.select(groups), groups.c.cursor, chunk)}
    of = trajectories.c
    complete = (
        _members(spec, connection.dialect.name)
        .join(groups, of.group_cursor == groups.c.cursor)
        .where(of.complete_cursor <= groups.c.ready_cursor)
        .order_by(of.complete_cursor, of.cursor)
    )
    members: dict[int, list[sa.Row[Any]]] = defaultdict(list)
    for row in select_in(connection, complete, of.group_cursor, chunk):
        if listed is None or row.cursor in listed:
            members[row.group_cursor].append(row)
    for cursor in chunk:
        unit = _group_unit(sizes[cursor], members[cursor], spec, floor, frozen=listed is not None)
        if unit is not None:
            yield unit


def _group_unit(
    group: sa.Row[Any], members: Sequence[sa.Row[Any]], spec: LeaseSpec, floor: int, *, frozen: bool
) -> Candidate | None:
    """What is left of a group for this consumer; None: it asks for something else."""
    members = members[: group.size]
    reasons = {row.cursor: _refusal(row, spec, floor) for row in members}
    left = [row for row in members if not reasons[row.cursor]]
    fewest = 1 if frozen else group.min_size or group.size
    if len(left) >= min(fewest, group.size) and left:
        return _candidate(group.cursor, left, tuple((of, why) for of, why in reasons.items() if why))
    named = [why for why in reasons.values() if why in (REJECTED, STALE)]
    return _candidate(group.cursor, (), dropped=named[0]) if named else None


def _trajectory_units(
    connection: sa.Connection, spec: LeaseSpec, floor: int, chunk: Sequence[int], listed: set[int] | None
) -> Iterator[Candidate]:
    rows = {
        row.cursor: row
        for row in select_in(connection, _members(spec, connection.dialect.name), trajectories.c.cursor, chunk)
    }
    for cursor in chunk:
        reason = _refusal(rows[cursor], spec, floor)
        if listed is None or cursor in listed:
            yield _candidate(cursor, [] if reason else [rows[cursor]], dropped=reason)


def _members(spec: LeaseSpec, dialect: str) -> sa.Select[Any]:
    wanted = sa.and_(sa.true(), *filters.conditions(spec.selection_given, dialect))
    return sa.select(*_member_columns, sa.case((wanted, 1), else_=0).label("wanted"))


def _refusal(row: sa.Row[Any], spec: LeaseSpec, floor: int) -> str:
    if row.verdict == "reject" and "reject" not in spec.selection_given.verdicts:
        return REJECTED
    if row.policy_version_min is not None and row.policy_version_min < floor:
        return STALE
    return "" if row.wanted else "not selected"


def _candidate(
    cursor: int, members: Sequence[sa.Row[Any]], left_out: tuple[tuple[int, str], ...] = (), dropped: str = ""
) -> Candidate:
    return Candidate(
        cursor=cursor,
        members=tuple(row.cursor for row in members),
        steps=sum(row.steps for row in members),
        tokens=sum(row.tokens for row in members),
        dropped=dropped,
        left_out=left_out,
    )


@dataclass(frozen=True, slots=True)
class _Dataset:
    """A frozen choice of units and members."""

    unit: Unit
    name: str
    version: int

    @property
    def rows(self) -> tuple[filters.Condition, ...]:
        return (dataset_units.c.name == self.name, dataset_units.c.version == self.version)

    def members(self, connection: sa.Connection, units: Sequence[int]) -> set[int]:
        """Cursors of the trajectories of these units that belong to it."""
        lists = sa.select(dataset_units.c.members).where(*self.rows)
        found = select_in(connection, lists, dataset_units.c.unit_cursor, units)
        return {int(cursor) for row in found for cursor in np.frombuffer(row.members, "<i8")}


def _dataset(connection: sa.Connection, name: str) -> _Dataset:
    """`name`, of the newest version, or `name@version`. Raises NotFound."""
    row = dataset_row(connection, name)
    return _Dataset(row.unit, row.name, row.version)
