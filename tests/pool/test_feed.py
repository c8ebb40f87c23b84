"""Every store in `conftest.STORES` obeys the laws of the feed."""

from tests.pool.feed_laws import FeedLaws


class TestFeed(FeedLaws):
    pass
