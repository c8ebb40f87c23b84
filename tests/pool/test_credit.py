"""Every store in `conftest.STORES` obeys the laws."""

from tests.pool.credit_laws import CreditLaws, HeldLaws


class TestCredit(CreditLaws):
    pass


class TestHeld(HeldLaws):
    pass
