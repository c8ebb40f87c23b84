"""Statements that are compiled once: what runs for every call that the gateway records.

SQLAlchemy builds a statement anew for each execution, caches or not, and wraps its result; that costs many times as
much as SQLite needs to run one. Here the SQL text is made once per dialect, from the same Core statements, and handed
to the driver. Only plain columns may be selected, as no result is converted.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError

_SIZES: Final = (1, 8, 64, 512, 4096)  # values per look-up: few sizes, so few statements; places left over repeat one


class Prepared:
    """A statement that runs with different parameters."""

    def __init__(self, statement: sa.Executable, parameters: Sequence[str] = ()) -> None:
        """`parameters` name the columns that an INSERT or UPDATE sets from the parameters; its bound parameters too."""
        self._statement: Any = statement
        self._parameters = list(parameters) or None
        self._compiled: dict[str, tuple[str, Any]] = {}

    def execute(self, connection: sa.Connection, rows: Sequence[Mapping[str, object]] = ({},)) -> Any:
        """Run it once for each of `rows`, in which a column that is missing is null; gives the driver's cursor.

        Raises:
            sqlalchemy.exc.DBAPIError: the database refused it.
        """
        text, bind = self._on(connection.dialect)
        cursor = connection.connection.cursor()
        try:
            if len(rows) == 1:
                cursor.execute(text, bind(rows[0]))
            else:
                cursor.executemany(text, [bind(row) for row in rows])
        except connection.dialect.loaded_dbapi.Error as error:
            raise DBAPIError(text, None, error) from error
        return cursor

    def _on(self, dialect: Dialect) -> tuple[str, Any]:
        known = self._compiled.get(dialect.name)
        if known is None:
            compiled = self._statement.compile(dialect=dialect, column_keys=self._parameters)
            constants = {name: bound.value for name, bound in compiled.binds.items() if not bound.required}
            order = compiled.positiontup
            names = list(compiled.params) if order is None else list(order)

            def bind(row: Mapping[str, object]) -> object:
                values = [row.get(name, constants.get(name)) for name in names]
                return dict(zip(names, values, strict=True)) if order is None else tuple(values)

            known = self._compiled[dialect.name] = (str(compiled), bind)
        return known


class LookUp:
    """The rows of a SELECT where one column is among given values, however many."""

    def __init__(self, statement: sa.Select[Any], column: sa.ColumnElement[Any]) -> None:
        """`statement` must not have a parameter of its own."""
        self._names = [f"value{position}" for position in range(_SIZES[-1])]
        names = [column.name for column in statement.selected_columns]
        make_type: Any = namedtuple  # whose fields mypy wants to see
        self._made: Callable[[Iterable[object]], Any] = make_type("Row", names)._make
        self._by_size = {
            size: Prepared(statement.where(column.in_([sa.bindparam(name) for name in self._names[:size]])))
            for size in _SIZES
        }

    def rows(self, connection: sa.Connection, values: Sequence[object]) -> Iterator[Any]:
        """In no order of the values; ordered as the statement says only within some thousands of them."""
        for start in range(0, len(values), _SIZES[-1]):
            chunk = list(values[start : start + _SIZES[-1]])
            size = next(size for size in _SIZES if size >= len(chunk))
            chunk += chunk[-1:] * (size - len(chunk))
            row = dict(zip(self._names, chunk, strict=False))
            yield from map(self._made, self._by_size[size].execute(connection, [row]).fetchall())
