"""What is written of a pool: the exact records, conversations to imitate, or pairs to prefer one of."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from stepwell.pool.archive.entries import Entry
from stepwell.pool.archive.table import Row


class View(Protocol):
    """Entries to rows of one kind."""

    @property
    def row(self) -> type[Row]:
        """What its rows have for columns."""
        ...

    def rows(self, entries: Iterable[Entry], skipped: Counter[str]) -> Iterator[Row]:
        """The rows of all entries, in order; what gives none is counted in `skipped` under its reason.

        Raises:
            InvalidRecord: an entry cannot be written in this view at all.
        """
        ...
