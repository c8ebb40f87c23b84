"""Handing units to consumers: each unit to each consumer, held by one lease at a time, until acknowledged.

All of it runs inside the writer's transaction, which holds the lock of the cursor, so two leases never take the same
unit. `deliveries` has at most one row per (consumer, epoch, unit): the lease that has it last and when it may be given
again, or why the consumer never gets it. What a consumer is done with lies behind its *frontier*, so a lease costs the
same in a pool of a million steps as in a small one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from stepwell.errors import Conflict, NotFound
from stepwell.pool import ingest
from stepwell.pool.candidates import Candidate, offered
from stepwell.pool.lease import LeaseSpec, Unit
from stepwell.pool.schema import deliveries, leases, updates
from stepwell.pool.sifting import Sifted, sizes
from stepwell.types import new_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A lease as it is stored: units and their members are named by their cursors."""

    id: str
    expires_at: float
    """Unix time in seconds."""
    unit: Unit
    """What they are."""
    units: tuple[Candidate, ...]


def claim(connection: sa.Connection, spec: LeaseSpec, now: float) -> Claim:
    """Take for the consumer what `spec` asks for; `now` is Unix time in seconds.

    Units that it will never get are dropped for it on the way. An empty lease is stored too, so that it can be
    acknowledged; it is swept away once it has expired.

    Raises:
        NotFound: there is no such dataset.
    """
    ingest.lock_cursor(connection)
    offer = offered(connection, spec, _floor(connection, spec), now)
    taken, dropped = _chosen(spec, offer.candidates)
    lease = Claim(id=new_id("lease"), expires_at=now + spec.seconds, unit=offer.unit, units=tuple(taken))
    idle = sa.delete(leases).where(leases.c.consumer == spec.consumer, leases.c.size == 0, leases.c.expires_at <= now)
    connection.execute(idle)
    row = {"id": lease.id, "consumer": spec.consumer, "epoch": spec.epoch, "size": len(taken), "state": "held"}
    connection.execute(sa.insert(leases), [{**row, "expires_at": lease.expires_at}])
    left_out = [pair for unit in taken for pair in unit.left_out]
    out = [*((unit.cursor, unit.dropped) for unit in dropped), *left_out]
    _deliver(connection, spec, [*(_given(unit, lease) for unit in taken), *(_dropped(*pair) for pair in out)])
    return lease


def _floor(connection: sa.Connection, spec: LeaseSpec) -> int:
    """The oldest policy version that is fresh enough."""
    if spec.max_staleness is None:
        return 0
    newest = spec.policy_version
    if newest is None:
        newest = connection.scalar(sa.select(sa.func.max(updates.c.policy_version))) or 0
    return newest - spec.max_staleness


def _chosen(spec: LeaseSpec, candidates: Iterator[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """What is handed over, within the budget, and what is dropped on the way there."""
    taken: list[Candidate] = []
    dropped: list[Candidate] = []
    steps = tokens = 0
    for unit in candidates:
        if unit.dropped:
            dropped.append(unit)
            continue
        steps, tokens = steps + unit.steps, tokens + unit.tokens
        full = _over(steps, spec.max_steps) or _over(tokens, spec.max_tokens)
        if taken and full:
            break
        taken.append(unit)
        if full or len(taken) == spec.limit:
            break
    return taken, dropped


def _over(count: int, most: int | None) -> bool:
    return most is not None and count > most


def _given(unit: Candidate, lease: Claim) -> dict[str, object]:
    return {"unit_cursor": unit.cursor, "lease_id": lease.id, "free_at": lease.expires_at, "dropped": "",
            "steps": unit.steps, "tokens": unit.tokens}  # fmt: skip


def _dropped(cursor: int, reason: str) -> dict[str, object]:
    return {"unit_cursor": cursor, "lease_id": None, "free_at": None, "dropped": reason,
            "steps": 0, "tokens": 0}  # fmt: skip


def _deliver(connection: sa.Connection, spec: LeaseSpec, rows: list[dict[str, object]]) -> None:
    if not rows:
        return
    before = sa.delete(deliveries).where(
        deliveries.c.consumer == spec.consumer,
        deliveries.c.epoch == spec.epoch,
        deliveries.c.unit_cursor == sa.bindparam("given"),
    )
    connection.execute(before, [{"given": row["unit_cursor"]} for row in rows])
    owner = {"consumer": spec.consumer, "epoch": spec.epoch}
    connection.execute(sa.insert(deliveries), [{**owner, **row} for row in rows])


def leave_out(connection: sa.Connection, spec: LeaseSpec, lease_id: str, units: Sequence[Sifted]) -> None:
    """Take out of a lease that was just made what the rules refuse. Does the same when it is done again."""
    own = deliveries.c.lease_id == lease_id
    for one in units:
        if one.group is not None and one.out:
            steps, tokens = sizes(one.group)
            of_unit = sa.update(deliveries).where(own, deliveries.c.unit_cursor == one.unit.cursor)
            connection.execute(of_unit.values(steps=steps, tokens=tokens))
    _deliver(connection, spec, [_dropped(*pair) for one in units for pair in one.out])
    left = sum(one.group is not None for one in units)
    connection.execute(sa.update(leases).where(leases.c.id == lease_id).values(size=left))


def acknowledge(connection: sa.Connection, lease_id: str) -> None:
    """The consumer is done with all units of the lease, or with none of them if it raises. Idempotent.

    A lease that expired can still be acknowledged while none of its units was handed over again.

    Raises:
        NotFound: there is no such lease.
        Conflict: it was released, or it expired and a unit of it was handed over again.
    """
    state, size = _lease(connection, lease_id)
    if state == "acknowledged":
        return
    _require_held(lease_id, state)
    _touch(connection, lease_id, size, None)
    _close(connection, lease_id, "acknowledged")


def extend(connection: sa.Connection, lease_id: str, until: float) -> None:
    """Hold the units of the lease until `until`, Unix time in seconds.

    Raises:
        NotFound: there is no such lease.
        Conflict: it was acknowledged or released, or it expired and a unit of it was handed over again.
    """
    state, size = _lease(connection, lease_id)
    _require_held(lease_id, state)
    _touch(connection, lease_id, size, until)
    connection.execute(sa.update(leases).where(leases.c.id == lease_id).values(expires_at=until))


def release(connection: sa.Connection, lease_id: str) -> None:
    """Make the units that the lease still holds available at once. Idempotent; an acknowledged lease stays so.

    Raises:
        NotFound: there is no such lease.
    """
    state, _ = _lease(connection, lease_id)
    if state == "held":
        connection.execute(sa.delete(deliveries).where(deliveries.c.lease_id == lease_id))
        _close(connection, lease_id, "released")


def exists(connection: sa.Connection, lease_id: str) -> bool:
    """Whether there is such a lease."""
    return connection.scalar(sa.select(leases.c.id).where(leases.c.id == lease_id)) is not None


def release_all(connection: sa.Connection, consumer: str) -> int:
    """`release` every lease that the consumer still holds; gives their number."""
    held = sa.select(leases.c.id).where(leases.c.consumer == consumer, leases.c.state == "held")
    lease_ids = list(connection.scalars(held))
    for lease_id in lease_ids:
        release(connection, lease_id)
    return len(lease_ids)


def _require_held(lease_id: str, state: str) -> None:
    if state != "held":
        raise Conflict(f"lease {lease_id!r} was {state}; lease again")


def _touch(connection: sa.Connection, lease_id: str, size: int, free_at: float | None) -> None:
    own = sa.update(deliveries).where(deliveries.c.lease_id == lease_id).values(free_at=free_at)
    if connection.execute(own).rowcount != size:
        raise Conflict(
            f"lease {lease_id!r} expired and its units were handed over again; drop them or lease for longer"
        )


def _lease(connection: sa.Connection, lease_id: str) -> tuple[str, int]:
    statement = sa.select(leases.c.state, leases.c.size).where(leases.c.id == lease_id)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"no lease {lease_id!r}")
    return row.state, row.size


def _close(connection: sa.Connection, lease_id: str, state: str) -> None:
    connection.execute(sa.update(leases).where(leases.c.id == lease_id).values(state=state))
