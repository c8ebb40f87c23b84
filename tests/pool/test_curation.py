"""Every store in `conftest.STORES` obeys the laws of curation."""

from tests.pool.curation_laws import CurationLaws


class TestCuration(CurationLaws):
    pass
