import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from stepwell.errors import NotFound, PoolError
from stepwell.pool import schema
from stepwell.pool.sql import SQLPool
from stepwell.pool.store import open_pool
from stepwell.pool.writer import Writer
from stepwell.types import TrajectoryInfo
from tests.pool.builders import make_step


@pytest.fixture
def pool(location: str) -> Iterator[SQLPool]:
    opened = open_pool(location)
    yield opened
    opened.close()


@pytest.fixture
def writer(pool: SQLPool) -> Writer:
    assert pool._writer is not None
    return pool._writer


def hold(writer: Writer) -> threading.Event:
    """Keep the writer busy until the event is set, so that what is submitted meanwhile shares one commit."""
    started, released = threading.Event(), threading.Event()

    def wait(_: sa.Connection) -> None:
        started.set()
        released.wait(30)

    writer.call(wait)
    started.wait(30)
    return released


def test_a_call_that_raises_is_undone_alone(pool: SQLPool, writer: Writer) -> None:
    released = hold(writer)
    before = pool.append([TrajectoryInfo(id="before")])

    def fail(connection: sa.Connection) -> None:
        connection.execute(sa.delete(schema.trajectories))
        raise NotFound("on purpose")

    failed, after = writer.call(fail), pool.append([TrajectoryInfo(id="after")])
    released.set()
    assert isinstance(failed.exception(30), NotFound)
    assert [before.result(30)[0].cursor, after.result(30)[0].cursor] == [1, 2]
    assert pool.stats().trajectories == 2


def test_a_call_that_the_database_refuses_fails_alone(pool: SQLPool, writer: Writer) -> None:
    released = hold(writer)
    before = pool.append([TrajectoryInfo(id="t"), make_step("t", 0, prompt=range(1, 50))])
    refused = writer.call(lambda connection: connection.execute(sa.text("INSERT INTO nowhere VALUES (1)")))
    after = pool.append([make_step("t", 1, prompt=range(1, 60))])
    released.set()
    assert isinstance(refused.exception(30), PoolError)
    assert [receipt.cursor for receipt in before.result(30) + after.result(30)] == [1, 2, 3]
    assert [len(step.prompt_ids) for step in pool.trajectory("t").steps] == [49, 59]


def test_an_append_of_something_that_is_no_record_fails_alone(pool: SQLPool, writer: Writer) -> None:
    released = hold(writer)
    good, bad = pool.append([TrajectoryInfo(id="t")]), pool.append(["not a record"])  # type: ignore[list-item]
    released.set()
    assert good.result(30)[0].error is None
    assert bad.exception(30) is not None


def test_a_cancelled_append_is_not_stored_and_hinders_no_other(pool: SQLPool, writer: Writer) -> None:
    released = hold(writer)
    cancelled, other = pool.append([TrajectoryInfo(id="a")]), pool.append([TrajectoryInfo(id="b")])
    assert cancelled.cancel()
    released.set()
    assert other.result(30)[0].cursor == 1


def test_nothing_is_visible_before_the_commit(pool: SQLPool, writer: Writer) -> None:
    seen = []

    def look(connection: sa.Connection) -> None:
        connection.execute(sa.update(schema.meta).where(schema.meta.c.name == "cursor").values(value=7))
        seen.append(pool.stats().cursor)

    writer.call(look).result(30)
    assert (seen, pool.stats().cursor) == ([0], 7)
