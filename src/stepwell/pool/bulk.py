"""Many rows into one table, in the way that is fastest on each database.

SQLite runs one prepared statement for each row. PostgreSQL takes many new rows as one binary COPY, and changes many as
one UPDATE from arrays, which spares it a statement for each; a few new rows it gets as INSERTs in one pipeline, since a
COPY costs more to begin.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

_FEW: Final = 8
_TYPES: Final[dict[type[Any], str]] = {
    sa.BigInteger: "int8",
    sa.Float: "float8",
    sa.LargeBinary: "bytea",
    sa.Text: "text",
}
_Row = tuple[object, ...]
_Rows = Sequence[_Row]


def insert(connection: sa.Connection, table: sa.Table, columns: tuple[str, ...], rows: _Rows) -> None:
    """Insert `rows`, each with one value for each of `columns`; within the transaction of `connection`.

    Values are exactly what the column holds: int, float, str, bytes or None; other columns get null.

    Raises:
        sqlalchemy.exc.DBAPIError: the database refused it.
    """
    if rows:
        _run(connection, _INSERTS[connection.dialect.name], table, columns, rows)


def update(connection: sa.Connection, table: sa.Table, columns: tuple[str, ...], rows: _Rows) -> None:
    """Change the row of each of `rows`: the first of `columns` says which one it is, the others are set.

    Raises:
        sqlalchemy.exc.DBAPIError: the database refused it.
    """
    if rows:
        _run(connection, _UPDATES[connection.dialect.name], table, columns, rows)


@contextmanager
def inserting(
    connection: sa.Connection, table: sa.Table, columns: tuple[str, ...], expected: int
) -> Iterator[Callable[[_Row], None]]:
    """As `insert`, of rows that the block hands over as it makes them, `expected` or fewer of them.

    Many go to PostgreSQL at once, which stores them while the block makes others; until it ends, nothing else may be
    asked of `connection`.
    """
    if connection.dialect.name == "postgresql" and expected > _FEW:
        try:
            with _copying(connection.connection.cursor(), table, columns) as write:
                yield write
        except connection.dialect.loaded_dbapi.Error as error:
            raise DBAPIError(f"copy {table.name}", None, error) from error
    else:
        rows: list[_Row] = []
        yield rows.append
        insert(connection, table, columns, rows)


_Write = Callable[[Any, sa.Table, tuple[str, ...], _Rows], None]


def _run(connection: sa.Connection, write: _Write, table: sa.Table, columns: tuple[str, ...], rows: _Rows) -> None:
    try:
        write(connection.connection.cursor(), table, columns, rows)
    except connection.dialect.loaded_dbapi.Error as error:
        raise DBAPIError(f"{write.__name__} {table.name}", None, error) from error


@contextmanager
def _copying(cursor: Any, table: sa.Table, columns: tuple[str, ...]) -> Iterator[Callable[[_Row], None]]:
    with cursor.copy(_copy_text(table, columns)) as copy:
        copy.set_types(_types(table, columns))
        yield copy.write_row


def _insert_one_by_one(cursor: Any, table: sa.Table, columns: tuple[str, ...], rows: _Rows) -> None:
    columns, rows, _ = _without_nulls(columns, rows)
    cursor.executemany(_insert_text(table, columns, "?"), rows)


def _without_nulls(columns: tuple[str, ...], rows: _Rows) -> tuple[tuple[str, ...], _Rows, tuple[str, ...]]:
    """What is not null in all of `rows`, and the columns that are: sqlite3 takes as long for a None as for three ints.

    A single one stays, since to make all rows anew takes longer.
    """
    null = [at for at, value in enumerate(rows[0]) if value is None and all(row[at] is None for row in rows)]
    held = [at for at in range(len(columns)) if at not in null]
    if len(null) < 2 or len(held) < 2:
        return columns, rows, ()
    kept = itemgetter(*held)
    return kept(columns), list(map(kept, rows)), tuple(columns[at] for at in null)


def _insert_or_copy(cursor: Any, table: sa.Table, columns: tuple[str, ...], rows: _Rows) -> None:
    if len(rows) > _FEW:
        with _copying(cursor, table, columns) as write:
            for row in rows:
                write(row)
    elif len(rows) > 1:
        cursor.executemany(_insert_text(table, columns, "%s"), rows)
    else:
        cursor.execute(_insert_text(table, columns, "%s"), rows[0])


def _update_one_by_one(cursor: Any, table: sa.Table, columns: tuple[str, ...], rows: _Rows) -> None:
    columns, rows, null = _without_nulls(columns, rows)
    cursor.executemany(_update_text(table, columns, null), [(*row[1:], row[0]) for row in rows])


def _update_from_arrays(cursor: Any, table: sa.Table, columns: tuple[str, ...], rows: _Rows) -> None:
    cursor.execute(_update_from_text(table, columns), [list(values) for values in zip(*rows, strict=True)])


_INSERTS: Final[dict[str, _Write]] = {"sqlite": _insert_one_by_one, "postgresql": _insert_or_copy}
_UPDATES: Final[dict[str, _Write]] = {"sqlite": _update_one_by_one, "postgresql": _update_from_arrays}


@lru_cache(maxsize=64)
def _insert_text(table: sa.Table, columns: tuple[str, ...], mark: str) -> str:
    return f"INSERT INTO {_target(table, columns)} VALUES ({', '.join(mark for _ in columns)})"


@lru_cache(maxsize=64)
def _copy_text(table: sa.Table, columns: tuple[str, ...]) -> str:
    return f"COPY {_target(table, columns)} FROM STDIN (FORMAT BINARY)"


@lru_cache(maxsize=64)
def _update_text(table: sa.Table, columns: tuple[str, ...], null: tuple[str, ...]) -> str:
    changes = ", ".join([*(f'"{name}" = ?' for name in columns[1:]), *(f'"{name}" = NULL' for name in null)])
    return f'UPDATE "{table.name}" SET {changes} WHERE "{columns[0]}" = ?'


@lru_cache(maxsize=64)
def _update_from_text(table: sa.Table, columns: tuple[str, ...]) -> str:
    changes = ", ".join(f'"{name}" = new."{name}"' for name in columns[1:])
    arrays = ", ".join(f"%b::{kind}[]" for kind in _types(table, columns))
    names = ", ".join(f'"{name}"' for name in columns)
    own = f'"{table.name}"."{columns[0]}" = new."{columns[0]}"'
    return f'UPDATE "{table.name}" SET {changes} FROM unnest({arrays}) AS new ({names}) WHERE {own}'


@lru_cache(maxsize=64)
def _types(table: sa.Table, columns: tuple[str, ...]) -> list[str]:
    """What PostgreSQL has to be told of values in bulk: unlike in an INSERT, it converts nothing."""
    held = (type(table.c[name].type) for name in columns)
    return [next(name for kind, name in _TYPES.items() if issubclass(column, kind)) for column in held]


def _target(table: sa.Table, columns: tuple[str, ...]) -> str:
    names = ", ".join(f'"{name}"' for name in columns)
    return f'"{table.name}" ({names})'
