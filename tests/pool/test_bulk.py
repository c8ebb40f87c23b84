from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from stepwell.pool import bulk

TABLE = sa.Table(
    "bulk_things",
    sa.MetaData(),
    sa.Column("position", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("value", sa.Float(53)),
    sa.Column("text", sa.Text),
    sa.Column("data", sa.LargeBinary),
    sa.Column("left_out", sa.Text),
)
COLUMNS = ("position", "value", "text", "data")
Rows = list[tuple[object, ...]]


@pytest.fixture
def connection(location: str) -> Iterator[sa.Connection]:
    url = location.replace("postgresql:", "postgresql+psycopg:") if "://" in location else f"sqlite:///{location}"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        TABLE.create(connection)
        yield connection
        connection.rollback()


def held(connection: sa.Connection) -> Rows:
    return [tuple(row) for row in connection.execute(sa.select(TABLE).order_by(TABLE.c.position))]


values = st.tuples(
    st.none() | st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0),
    st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.none() | st.binary(max_size=40),
)
rows_of_any_number = st.dictionaries(st.integers(-(2**63), 2**63 - 1), values, max_size=12).map(
    lambda rows: [(position, *rest) for position, rest in rows.items()]
)
over_and_over = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@over_and_over
@given(rows_of_any_number)
def test_rows_are_read_back_as_they_were_inserted_few_or_many(connection: sa.Connection, rows: Rows) -> None:
    connection.execute(sa.delete(TABLE))
    bulk.insert(connection, TABLE, COLUMNS, rows)
    assert held(connection) == [(*row, None) for row in sorted(rows)]


@over_and_over
@given(rows_of_any_number, st.integers(0, 5))
def test_rows_that_are_handed_over_one_by_one_are_read_back_too(
    connection: sa.Connection, rows: Rows, more: int
) -> None:
    connection.execute(sa.delete(TABLE))
    with bulk.inserting(connection, TABLE, COLUMNS, len(rows) + more) as insert:
        for row in rows:
            insert(row)
    assert held(connection) == [(*row, None) for row in sorted(rows)]


@pytest.mark.parametrize("expected", [1, 50])
def test_what_is_refused_while_rows_are_handed_over_is_an_error_of_sqlalchemys(
    connection: sa.Connection, expected: int
) -> None:
    with pytest.raises(DBAPIError), bulk.inserting(connection, TABLE, COLUMNS, expected) as insert:  # noqa: PT012
        insert((7, None, None, None))
        insert((7, None, None, None))


@over_and_over
@given(rows_of_any_number, st.data())
def test_an_update_changes_the_named_columns_of_the_named_rows(
    connection: sa.Connection, rows: Rows, data: st.DataObject
) -> None:
    connection.execute(sa.delete(TABLE))
    bulk.insert(connection, TABLE, COLUMNS, rows)
    some = data.draw(st.lists(st.sampled_from(rows), unique=True)) if rows else []
    changed = {row[0]: data.draw(values)[:2] for row in some}
    bulk.update(connection, TABLE, ("position", "value", "text"), [(row, *new) for row, new in changed.items()])
    assert held(connection) == [(row[0], *changed.get(row[0], row[1:3]), row[3], None) for row in sorted(rows)]


@pytest.mark.parametrize("count", [1, 5, 50])
def test_what_the_database_refuses_is_an_error_of_sqlalchemys(connection: sa.Connection, count: int) -> None:
    with pytest.raises(DBAPIError):
        bulk.insert(connection, TABLE, COLUMNS, [(7, None, None, None)] * count + [(7, None, None, None)])
