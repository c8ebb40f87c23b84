"""Statements that are compiled once: what runs for every call that the gateway records.

SQLAlchemy builds a statement anew for each execution, caches or not, and wraps its result; that costs many times as
much as SQLite needs to run one. Here the SQL text is made once per dialect, from the same Core statements, and handed
to the driver. Only plain columns may be selected, as no result is converted.
"""

import json
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

_AMONG: Final = "among"


class _Among(sa.ColumnElement[bool]):
    """That a column is one of any number of values, which are one parameter: one statement for every number."""

    inherit_cache = False  # SQLAlchemy's cache would not tell two columns apart; `Prepared` is the cache here
    type = sa.Boolean()
    _is_implicitly_boolean = True  # SQLite would compare it with 1, and then use no index

    def __init__(self, column: sa.ColumnElement[Any]) -> None:
        self.column = column
        self.values: sa.BindParameter[Any] = sa.bindparam(_AMONG)


@compiles(_Among, "sqlite")
def _on_sqlite(element: _Among, compiler: Any, **options: Any) -> str:
    column, values = compiler.process(element.column, **options), compiler.process(element.values, **options)
    return f"{column} IN (SELECT value FROM json_each({values}))"


@compiles(_Among, "postgresql")
def _on_postgresql(element: _Among, compiler: Any, **options: Any) -> str:
    column, values = compiler.process(element.column, **options), compiler.process(element.values, **options)
    kind = compiler.dialect.type_compiler_instance.process(element.column.type)
    binary = values.removesuffix("s") + "b"  # %(among)b: a list takes psycopg four times as long to write as text
    return f"{column} = ANY(CAST({binary} AS {kind}[]))"


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


class Among:
    """A statement about the rows where one column is among given values, however many."""

    def __init__(self, statement: Any, column: sa.ColumnElement[Any]) -> None:
        """`statement` must not have a parameter of its own."""
        self._prepared = Prepared(statement.where(_Among(column)))

    def execute(self, connection: sa.Connection, values: Sequence[object]) -> Any:
        """Gives the driver's cursor.

        Raises:
            sqlalchemy.exc.DBAPIError: the database refused it.
        """
        among = list(values) if connection.dialect.name == "postgresql" else json.dumps(list(values))
        return self._prepared.execute(connection, [{_AMONG: among}])


class LookUp:
    """The rows of a SELECT where one column is among given values, however many."""

    def __init__(self, statement: sa.Select[Any], column: sa.ColumnElement[Any]) -> None:
        """`statement` must not have a parameter of its own."""
        names = [column.name for column in statement.selected_columns]
        make_type: Any = namedtuple  # whose fields mypy wants to see
        self._made: Callable[[Iterable[object]], Any] = make_type("Row", names)._make
        self._among = Among(statement, column)

    def rows(self, connection: sa.Connection, values: Sequence[object]) -> Iterator[Any]:
        """In no order of the values, but in that of the statement."""
        if values:
            yield from map(self._made, self._among.execute(connection, values).fetchall())
