"""What a consumer does with the feed: lease, wait for something to lease, and see what it had."""

import math
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

import sqlalchemy as sa

from stepwell.errors import InvalidRequest, NoProducer, PoolError
from stepwell.pool import feed, filters, queries, saved
from stepwell.pool.candidates import waiting
from stepwell.pool.groups import settle
from stepwell.pool.lease import Consumption, HeldLease, Lease, LeaseSpec
from stepwell.pool.rows import storable
from stepwell.pool.schema import deliveries, leases, producers
from stepwell.pool.sifting import sift

_T = TypeVar("_T")
_LOOK: Final = 0.05
"""Seconds between two looks whether there is something new."""
_LOOK_ANYWAY: Final = 1.0
"""Seconds after which a deadline may have passed or a lease may have expired, though nothing was appended."""
_FORGOTTEN: Final = 86_400.0
"""Seconds after which a producer that was gone is not known any more."""


class Runs(Protocol):
    """Runs work in one transaction and gives its result; runs it again where the database went away."""

    def __call__(self, work: Callable[[sa.Connection], _T], /) -> _T:
        """Raises PoolError, and what `work` raises."""
        ...


def lease(write: Runs, read: Runs, spec: LeaseSpec, clock: Callable[[], float]) -> Lease:
    """See `Pool.lease`."""
    spec = _looked_up(read, spec)
    until = time.monotonic() + spec.wait
    while True:
        claim = write(_claiming(spec, clock()))
        lease = _opened(write, read, spec, claim)
        if lease.groups or (not claim.units and time.monotonic() >= until):
            return lease
        if not claim.units:  # else rules left nothing of what there was, so look for more at once
            read(partial(require_producer, consumer=spec.consumer, now=clock()))
            _wait_for_news(read, read(newest), until)


def backlog(read: Runs, spec: LeaseSpec, most: int, clock: Callable[[], float]) -> int:
    """See `Pool.backlog`."""
    spec = _looked_up(read, spec)

    def count(connection: sa.Connection) -> int:
        left = (one for one in waiting(connection, spec, clock()) if not one.dropped)
        return sum(1 for _ in islice(left, most))

    return read(count)


def _looked_up(read: Runs, spec: LeaseSpec) -> LeaseSpec:
    """With the selection that it names. Raises InvalidRequest for names that no pool can hold."""
    named = spec.selection if isinstance(spec.selection, str) else None
    if not all(map(storable, (spec.consumer, spec.dataset, named or ""))):
        raise InvalidRequest("a lease needs names without NUL or lone surrogates")
    if named is not None:
        spec = spec.model_copy(update={"selection": read(partial(saved.selection, name=named))})
    filters.require_storable(spec.selection_given)
    return spec


def _claiming(spec: LeaseSpec, now: float) -> Callable[[sa.Connection], feed.Claim]:
    """Work that claims once, however often it runs: its commit may have come through though nobody answered."""
    made: list[feed.Claim] = []

    def claim(connection: sa.Connection) -> feed.Claim:
        if not (made and feed.exists(connection, made[-1].id)):
            settle(connection, now)
            made.append(feed.claim(connection, spec, now))
        return made[-1]

    return claim


def _opened(write: Runs, read: Runs, spec: LeaseSpec, claim: feed.Claim) -> Lease:
    """The lease with its data, which are read outside the write transaction: others need not wait for it."""
    wanted, single = [(unit.cursor, unit.members) for unit in claim.units], claim.unit == "trajectory"
    try:
        groups = read(lambda connection: queries.units(connection, wanted, single=single))
    except PoolError:
        write(lambda connection: feed.release(connection, claim.id))  # nobody knows of it, so nobody else will
        raise
    sifted = sift(spec.selection_given, claim.units, groups)
    if any(one.out for one in sifted):
        write(lambda connection: feed.leave_out(connection, spec, claim.id, sifted))
    left = tuple(one.group for one in sifted if one.group is not None)
    return Lease(id=claim.id, consumer=spec.consumer, groups=left, expires_at=claim.expires_at)


def _wait_for_news(read: Runs, seen: int, until: float) -> None:
    anyway = time.monotonic() + _LOOK_ANYWAY
    while (now := time.monotonic()) < min(until, anyway):
        time.sleep(min(_LOOK, until - now))
        if read(newest) != seen:
            return


def newest(connection: sa.Connection) -> int:
    """See `Pool.cursor`."""
    return int(connection.scalars(queries.newest_cursor).one())


def require_producer(connection: sa.Connection, consumer: str, now: float) -> None:
    """See `Pool.require_producer`."""
    last = connection.scalar(sa.select(sa.func.max(producers.c.alive_until)))
    if last is not None and last < now:
        raise NoProducer(
            f"nothing is ready for {consumer!r}, and no producer is alive: the last one was heard of "
            f"{now - last:.0f} s too long ago. Start the gateway or the rollout that fills this pool"
        )


def heartbeat(connection: sa.Connection, producer: str, until: float) -> None:
    """See `Pool.heartbeat`. Those of which nothing was heard for long are forgotten: each start makes a new one."""
    gone = sa.or_(producers.c.name == producer, producers.c.alive_until < until - _FORGOTTEN)
    connection.execute(sa.delete(producers).where(gone))
    connection.execute(sa.insert(producers), [{"name": producer, "alive_until": until}])


def consumption(connection: sa.Connection) -> list[Consumption]:
    """See `Pool.consumption`."""
    state = sa.case(
        (deliveries.c.lease_id.is_(None), "dropped"), (deliveries.c.free_at.is_(None), "done"), else_="held"
    )
    kinds = (deliveries.c.consumer, deliveries.c.epoch, state.label("state"), deliveries.c.dropped)
    total = sa.func.sum
    counted = sa.select(*kinds, sa.func.count(), total(deliveries.c.steps), total(deliveries.c.tokens)).group_by(*kinds)
    found: dict[tuple[str, int], dict[str, Any]] = defaultdict(lambda: {"held": 0, "done": (0, 0, 0), "dropped": []})
    for consumer, epoch, what, reason, units, steps, tokens in connection.execute(counted.order_by(*kinds)):
        own = found[consumer, epoch]
        if what == "dropped":
            own["dropped"].append((reason, units))
        else:
            own[what] = units if what == "held" else (units, int(steps), int(tokens))
    return [
        Consumption(
            consumer=consumer,
            epoch=epoch,
            held=own["held"],
            acknowledged=own["done"][0],
            steps=own["done"][1],
            tokens=own["done"][2],
            dropped=tuple(own["dropped"]),
        )
        for (consumer, epoch), own in found.items()
    ]


def held(connection: sa.Connection) -> list[HeldLease]:
    """See `Pool.held`."""
    total = sa.func.sum
    own = sa.select(leases, sa.func.count().label("units"), total(deliveries.c.steps), total(deliveries.c.tokens))
    joined = own.join(deliveries, deliveries.c.lease_id == leases.c.id).where(leases.c.state == "held")
    rows = connection.execute(joined.group_by(leases.c.id).order_by(leases.c.expires_at, leases.c.id))
    return [
        HeldLease(
            id=row.id,
            consumer=row.consumer,
            epoch=row.epoch,
            units=row.units,
            steps=int(steps),
            tokens=int(tokens),
            expires_at=row.expires_at,
        )
        for row in rows
        for steps, tokens in [row[-2:]]
    ]


def checked(seconds: float) -> float:
    """`seconds`, if that is a time that passes. Raises InvalidRequest."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidRequest(f"seconds must be positive and finite, got {seconds}")
    return seconds
