import logging
from collections.abc import Callable

import pytest
from sqlalchemy.exc import SQLAlchemyError

from stepwell.errors import NotFound, PoolError
from stepwell.pool.patience import Patience


class Away(SQLAlchemyError):
    """The database does not answer."""


class Refused(SQLAlchemyError):
    """The database says no."""


def patience(seconds: float = 60.0) -> Patience:
    return Patience("pool", lambda error: isinstance(error, Away), seconds)


def failing(times: float, error: Exception) -> Callable[[], int]:
    """Fails so many times, then gives the number of tries."""
    tries = 0

    def attempt() -> int:
        nonlocal tries
        tries += 1
        if tries <= times:
            raise error
        return tries

    return attempt


def test_what_fails_in_passing_is_tried_until_it_succeeds() -> None:
    assert patience().run(failing(3, Away())) == 4


@pytest.mark.parametrize("error", [Refused("no"), NotFound("none")], ids=["by the database", "by Stepwell"])
def test_what_is_refused_is_tried_once(error: Exception) -> None:
    attempt = failing(1, error)
    with pytest.raises(type(error)):
        patience().run(attempt)
    assert attempt() == 2


def test_an_outage_that_lasts_too_long_is_a_pool_error_that_says_what_to_do() -> None:
    with pytest.raises(PoolError, match=r"pool: .*away for more than 0\.1 s; .*start it again"):
        patience(0.1).run(failing(float("inf"), Away()))


def test_after_too_long_an_outage_each_operation_is_tried_once_until_one_succeeds() -> None:
    own = patience(0.1)
    for _ in range(2):
        attempt = failing(1, Away())
        own._away_since = -1e9
        with pytest.raises(PoolError):
            own.run(attempt)
        assert attempt() == 2
    assert own.run(lambda: "back") == "back"
    assert own.run(failing(1, Away())) == 2


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        patience().run(failing(3, Away("no route to host")))
        patience().run(lambda: "well")
    begins, ends = caplog.messages
    assert begins == "pool pool: the database is away, trying again: no route to host"
    assert ends.startswith("pool pool: the database is back after ")
