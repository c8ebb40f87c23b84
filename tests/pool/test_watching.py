"""Every store in `conftest.STORES` obeys the laws of watching it."""

from tests.pool.watching_laws import WatchingLaws


class TestWatching(WatchingLaws):
    pass
