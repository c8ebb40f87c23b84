"""How long an operation waits for a database that is away: it is tried again, for so long and no longer."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from stepwell.errors import PoolError

_T = TypeVar("_T")

PATIENCE: Final = 30.0
"""Seconds that an outage may last before operations fail."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_log = logging.getLogger(__name__)


class Patience:
    """Tries again what failed in passing.

    An outage begins with a failure and ends with a success. Until it has lasted for `seconds`, operations wait; from
    then on each is tried once and fails at once, until the database is back. Safe to use from many threads.
    """

    def __init__(self, name: str, passes: Callable[[SQLAlchemyError], bool], seconds: float = PATIENCE) -> None:
        """`name`: the pool's, for errors; `passes`: whether an error is of a kind that another try may overcome."""
        self._name = name
        self._passes = passes
        self._seconds = seconds
        self._away_since: float | None = None

    def run(self, attempt: Callable[[], _T]) -> _T:
        """What `attempt` gives in the end; it must be such that it may run again after it failed.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: an error that does not pass.
            PoolError: the outage has lasted for too long.
        """
        began = None
        for pause in _pauses():
            try:
                result = attempt()
            except SQLAlchemyError as error:
                if not self._passes(error):
                    raise
                began = began or self._outage(error)
                if time.monotonic() + pause > began + self._seconds:
                    raise self._too_long() from error
                time.sleep(pause)
            else:
                self._recovered()
                return result
        raise AssertionError("pauses never end")

    def _outage(self, error: SQLAlchemyError) -> float:
        """When the present outage began, by the monotonic clock."""
        began = self._away_since
        if began is None:
            self._away_since = began = time.monotonic()
            _log.warning("pool %s: the database is away, trying again: %s", self._name, getattr(error, "orig", error))
        return began

    def _recovered(self) -> None:
        began, self._away_since = self._away_since, None
        if began is not None:
            _log.warning("pool %s: the database is back after %.1f s", self._name, time.monotonic() - began)

    def _too_long(self) -> PoolError:
        return PoolError(
            f"{self._name}: the database has been away for more than {self._seconds:g} s; nothing acknowledged is "
            "lost: start it again, or mend the network, and repeat the request"
        )


def _pauses() -> Iterator[float]:
    """Seconds between tries."""
    return (min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE) for number in itertools.count())
