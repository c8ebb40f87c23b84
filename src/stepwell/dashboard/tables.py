"""Tables that pages share: columns, cells that lead somewhere, and rows that change in place."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nicegui import ui

PAGE: Final = 25
"""Rows that a long table shows at a time."""

_NUMBER: Final = "value => value == null ? '' : Number(value).toLocaleString('en', %s)"

Column = dict[str, Any]
"""As Quasar's QTable has it, and for our cells `clip` and `colours`."""


def text(name: str, label: str, *, clip: bool = False, colours: Mapping[str, str] | None = None) -> Column:
    """A column of words, of the rows' field `name`. A row that has an address for it, as `name` with `_href`, links.

    Args:
        name: of the column and of the rows' field.
        label: in its head.
        clip: whether what is long is cut off, and read in full by pointing at it.
        colours: of its badges, by word; None: plain words.
    """
    made: Column = {"name": name, "label": label, "field": name, "align": "left", "sortable": True}
    if clip:
        made |= {"clip": True, "classes": "sw-clip"}
    return made if colours is None else made | {"colours": dict(colours)}


def right(name: str, label: str) -> Column:
    """A column of what is written like a number already, of the rows' field `name`."""
    return text(name, label) | {"align": "right"}


def number(name: str, label: str, digits: int | None = 0) -> Column:
    """A column of numbers, with so many digits behind the point, or (None) as many as tell; a None is left empty."""
    fixed = f"{{minimumFractionDigits: {digits}, maximumFractionDigits: {digits}}}"
    form = "{maximumSignificantDigits: 6}" if digits is None else fixed
    return right(name, label) | {":format": _NUMBER % form}


class Table(ui.table, component="steady_table.js"):  # type: ignore[call-arg]  # NiceGUI's types are not followed
    """A table whose cells are kept when its rows, or anything else on the page, change.

    What has the focus keeps it, and no click falls between a cell and the one that replaces it.
    """

    def __init__(
        self, columns: Sequence[Column], *, key: str, label: str, page: int = PAGE, sortable: bool = True
    ) -> None:
        """An empty table.

        Args:
            columns: of `text`, `right` and `number`.
            key: the field by which rows are told apart.
            label: what it holds, for those who have it read aloud.
            page: rows that it shows at a time; 0: all.
            sortable: whether a click on a column's head sorts by it.
        """
        columns = [column | {"sortable": column["sortable"] and sortable} for column in columns]
        super().__init__(rows=[], columns=columns, row_key=key, pagination=page)
        self._page = page
        self.props(f'flat dense aria-label="{label}" :rows-per-page-options="[{page}, 100, 500]"').classes("w-full")

    def fill(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Give it its rows; it is turned over only if it has more than a page of them."""
        turned = 0 < self._page < len(rows)
        self.props(f':hide-pagination="{"false" if turned else "true"}"')
        self.rows = [{name: _sent(value) for name, value in row.items()} for row in rows]


def _sent(value: object) -> object:
    """JSON has no word for numbers that are not finite; what JavaScript calls them, `number` shows as NaN and ∞."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("nan", "NaN").replace("inf", "Infinity")
    return value
