"""Every store in `conftest.STORES` obeys the laws."""

from tests.pool.laws import PoolLaws


class TestPool(PoolLaws):
    pass
