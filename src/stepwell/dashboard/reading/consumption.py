"""Who consumes the pool, what each holds and was never given."""

from dataclasses import dataclass

from stepwell.pool.base import Pool
from stepwell.pool.lease import Consumption, HeldLease


@dataclass(frozen=True, slots=True)
class Consumers:
    """Of all consumers."""

    consumers: tuple[Consumption, ...]
    held: tuple[HeldLease, ...]
    """By when they expire."""


def read_consumers(pool: Pool) -> Consumers:
    """As it is now; neither appears in the log, so the pool's cursor does not tell when it changes."""
    return Consumers(tuple(pool.consumption()), tuple(pool.held()))
