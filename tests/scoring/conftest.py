"""The stores of the pool's own tests: what is scored here is scored on each of them."""

from tests.pool.conftest import clock, location, pool, prepared, server

__all__ = ["clock", "location", "pool", "prepared", "server"]
