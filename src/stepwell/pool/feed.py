"""Handing ready groups to consumers: each group to each consumer, held by one lease at a time, until acknowledged.

All of it runs inside the writer's transaction, so two leases never take the same group. `deliveries` has at most one
row per (consumer, group): the lease that has the group last, and when it may be given again.
"""

import math
from dataclasses import dataclass

import sqlalchemy as sa

from stepwell.errors import Conflict, InvalidRequest, NotFound
from stepwell.pool.codec import storable
from stepwell.pool.queries import select_in
from stepwell.pool.schema import deliveries, groups, leases
from stepwell.types import new_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a consumer asks for; see `Pool.lease`."""

    consumer: str
    limit: int
    seconds: float
    min_policy_version: int
    group_ids: tuple[str, ...]
    channel: str | None

    def __post_init__(self) -> None:
        if not self.consumer or not all(map(storable, (self.consumer, self.channel or "", *self.group_ids))):
            raise InvalidRequest("a lease needs the name of its consumer, and names without NUL or lone surrogates")
        if self.limit < 1:
            raise InvalidRequest(f"limit of a lease must be at least 1, got {self.limit}")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InvalidRequest(f"seconds of a lease must be positive and finite, got {self.seconds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A lease as it is stored: the groups are named by their cursors."""

    id: str
    expires_at: float
    """Unix time in seconds."""
    groups: tuple[int, ...]


def claim(connection: sa.Connection, wish: Wish, now: float) -> Claim:
    """Take up to `limit` groups for the consumer, the first opened first; `now` is Unix time in seconds.

    An empty lease is stored too, so that it can be acknowledged; it is swept away once it has expired.
    """
    lease = Claim(id=new_id("lease"), expires_at=now + wish.seconds, groups=_available(connection, wish, now))
    idle = sa.delete(leases).where(leases.c.consumer == wish.consumer, leases.c.size == 0, leases.c.expires_at <= now)
    connection.execute(idle)
    row = {"id": lease.id, "consumer": wish.consumer, "size": len(lease.groups), "state": "held"}
    connection.execute(sa.insert(leases), [{**row, "expires_at": lease.expires_at}])
    if lease.groups:
        _deliver(connection, wish.consumer, lease)
    return lease


def _available(connection: sa.Connection, wish: Wish, now: float) -> tuple[int, ...]:
    delivered = sa.and_(deliveries.c.group_cursor == groups.c.cursor, deliveries.c.consumer == wish.consumer)
    statement = (
        sa.select(groups.c.cursor)
        .outerjoin(deliveries, delivered)
        .where(groups.c.ready_cursor.is_not(None))
        .where(sa.or_(groups.c.ready_version.is_(None), groups.c.ready_version >= wish.min_policy_version))
        .where(sa.or_(deliveries.c.lease_id.is_(None), deliveries.c.free_at <= now))
        .order_by(groups.c.cursor)
        .limit(wish.limit)
    )
    if wish.channel is not None:
        statement = statement.where(groups.c.channel == wish.channel)
    if not wish.group_ids:
        return tuple(connection.scalars(statement))
    chosen = sorted(row.cursor for row in select_in(connection, statement, groups.c.id, wish.group_ids))
    return tuple(chosen[: wish.limit])


def _deliver(connection: sa.Connection, consumer: str, lease: Claim) -> None:
    gone = sa.delete(deliveries).where(
        deliveries.c.consumer == consumer, deliveries.c.group_cursor == sa.bindparam("given")
    )
    connection.execute(gone, [{"given": group} for group in lease.groups])
    row = {"consumer": consumer, "lease_id": lease.id, "free_at": lease.expires_at}
    connection.execute(sa.insert(deliveries), [{**row, "group_cursor": group} for group in lease.groups])


def acknowledge(connection: sa.Connection, lease_id: str) -> None:
    """The consumer is done with all groups of the lease, or with none of them if it raises. Idempotent.

    A lease that expired can still be acknowledged while none of its groups was handed over again.

    Raises:
        NotFound: there is no such lease.
        Conflict: it was released, or it expired and a group of it was handed over again.
    """
    state, size = _lease(connection, lease_id)
    if state == "acknowledged":
        return
    if state == "released":
        raise Conflict(f"lease {lease_id!r} was released; lease the groups again")
    own = sa.update(deliveries).where(deliveries.c.lease_id == lease_id).values(free_at=None)
    if connection.execute(own).rowcount != size:
        raise Conflict(
            f"lease {lease_id!r} expired and its groups were handed over again; drop them or lease for longer"
        )
    _close(connection, lease_id, "acknowledged")


def release(connection: sa.Connection, lease_id: str) -> None:
    """Make the groups that the lease still holds available at once. Idempotent; an acknowledged lease stays so.

    Raises:
        NotFound: there is no such lease.
    """
    state, _ = _lease(connection, lease_id)
    if state == "held":
        connection.execute(sa.delete(deliveries).where(deliveries.c.lease_id == lease_id))
        _close(connection, lease_id, "released")


def release_all(connection: sa.Connection, consumer: str) -> int:
    """`release` every lease that the consumer still holds; gives their number."""
    held = sa.select(leases.c.id).where(leases.c.consumer == consumer, leases.c.state == "held")
    lease_ids = list(connection.scalars(held))
    for lease_id in lease_ids:
        release(connection, lease_id)
    return len(lease_ids)


def _lease(connection: sa.Connection, lease_id: str) -> tuple[str, int]:
    statement = sa.select(leases.c.state, leases.c.size).where(leases.c.id == lease_id)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"no lease {lease_id!r}")
    return row.state, row.size


def _close(connection: sa.Connection, lease_id: str, state: str) -> None:
    connection.execute(sa.update(leases).where(leases.c.id == lease_id).values(state=state))
