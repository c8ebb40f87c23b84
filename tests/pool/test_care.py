"""Every store in `conftest.STORES` obeys the laws of care."""

from tests.pool.care_laws import CareLaws


class TestCare(CareLaws):
    pass
