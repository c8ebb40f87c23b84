"""Every store in `conftest.STORES` obeys the laws of looking through it."""

from tests.pool.listing_laws import ListingLaws


class TestListing(ListingLaws):
    pass
