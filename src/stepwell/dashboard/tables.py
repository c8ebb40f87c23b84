"""Tables that pages share: columns, and cells that lead somewhere."""

import math
from collections.abc import Sequence
from typing import Any, Final

from nicegui import ui

PAGE: Final = 25
"""Rows that a long table shows at a time."""

# A cell whose row has an address for it, under the column's name with `_href`; Vue escapes both.
_LINK_CELL: Final = """
<q-td :props="props" style="max-width: 24em; overflow: hidden; text-overflow: ellipsis" :title="props.value">
  <a v-if="props.row[props.col.name + '_href']" :href="props.row[props.col.name + '_href']" class="nicegui-link">
    {{ props.value }}</a>
  <span v-else>{{ props.value }}</span>
</q-td>"""


_NUMBER: Final = "value => value == null ? '' : Number(value).toLocaleString('en', %s)"


def text(name: str, label: str) -> dict[str, Any]:
    """A column of words, of the rows' field `name`; a click on its head sorts by it."""
    return {"name": name, "label": label, "field": name, "align": "left", "sortable": True}


def number(name: str, label: str, digits: int | None = 0) -> dict[str, Any]:
    """A column of numbers, with so many digits behind the point, or (None) as many as tell; a None is left empty."""
    fixed = f"{{minimumFractionDigits: {digits}, maximumFractionDigits: {digits}}}"
    form = "{maximumSignificantDigits: 6}" if digits is None else fixed
    return text(name, label) | {"align": "right", ":format": _NUMBER % form}


def table(columns: Sequence[dict[str, Any]], *, key: str, links: Sequence[str] = (), label: str) -> ui.table:
    """An empty table.

    Args:
        columns: of `text` and `number`.
        key: the field by which rows are told apart.
        links: columns whose cells lead somewhere: to the row's field of that name with `_href`, if it has one.
        label: what it holds, for those who have it read aloud.
    """
    made = ui.table(rows=[], columns=list(columns), row_key=key, pagination=PAGE)
    made.props(f'flat dense aria-label="{label}" :rows-per-page-options="[{PAGE}, 100, 500]"').classes("w-full")
    for name in links:
        made.add_slot(f"body-cell-{name}", _LINK_CELL)
    return made


def fill(shown: ui.table, rows: Sequence[dict[str, Any]]) -> None:
    """Give a table its rows; it is turned over only if it has more than a page of them."""
    shown.props(f':hide-pagination="{"false" if len(rows) > PAGE else "true"}"')
    shown.rows = [{name: _sent(value) for name, value in row.items()} for row in rows]


def _sent(value: object) -> object:
    """JSON has no word for numbers that are not finite; what JavaScript calls them, `number` shows as NaN and ∞."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("nan", "NaN").replace("inf", "Infinity")
    return value
