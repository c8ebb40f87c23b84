import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from stepwell.cli.pool import app
from stepwell.errors import InvalidRequest, PoolError
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.postgres import PostgresPool
from stepwell.pool.store import without_password
from stepwell.types import Annotation, TrajectoryInfo
from tests.pool.builders import make_step, ready_group
from tests.pool.conftest import STORES
from tests.pool.cut import Cut, Moment, cutting
from tests.pool.postgres import Server


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return STORES["postgresql"](request)


@pytest.fixture
def cut(url: str) -> Iterator[Cut]:
    with cutting(url) as cut:
        yield cut


@pytest.fixture
def pool(cut: Cut) -> Iterator[PostgresPool]:
    opened = PostgresPool.open(cut.url)
    yield opened
    opened.close()


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
MOMENTS = pytest.mark.parametrize("moment", ["before the commit", "after the commit"])


@MOMENTS
def test_an_append_whose_commit_got_no_answer_is_stored_once(pool: PostgresPool, cut: Cut, moment: Moment) -> None:
    pool.put(TrajectoryInfo(id="t"))
    steps = [make_step("t", index, prompt=range(1, 9 + 4 * index)) for index in range(3)]
    cut.next_commit = moment
    receipts = pool.append(steps).result(60)
    assert cut.cuts == 1
    assert [(receipt.cursor, receipt.error) for receipt in receipts] == [(2, None), (3, None), (4, None)]
    assert pool.trajectory("t").steps == tuple(steps)
    assert pool.stats().cursor == 4


@MOMENTS
def test_a_lease_whose_commit_got_no_answer_is_given_once(pool: PostgresPool, cut: Cut, moment: Moment) -> None:
    pool.put(*ready_group("g0"), *ready_group("g1"))
    cut.next_commit = moment
    lease = pool.lease(LeaseSpec(consumer="trainer", limit=1))
    assert cut.cuts == 1
    assert [group.info.id for group in lease.groups] == ["g0"]
    assert [group.info.id for group in pool.lease(LeaseSpec(consumer="trainer", limit=9)).groups] == ["g1"]
    pool.acknowledge(lease.id)
    assert pool.release_all("trainer") == 1


@MOMENTS
@pytest.mark.parametrize("how", ["acknowledge", "release"])
def test_what_becomes_of_a_lease_is_settled_whether_or_not_the_commit_got_an_answer(
    pool: PostgresPool, cut: Cut, moment: Moment, how: str
) -> None:
    pool.put(*ready_group("g"))
    lease = pool.lease(LeaseSpec(consumer="trainer", limit=1))
    settle: Callable[[str], None] = getattr(pool, how)
    cut.next_commit = moment
    settle(lease.id)
    assert cut.cuts == 1
    settle(lease.id)
    assert len(pool.lease(LeaseSpec(consumer="trainer", limit=1)).groups) == (how == "release")


def test_nothing_is_lost_or_doubled_when_the_server_restarts_under_load(url: str, server: Server) -> None:
    pool = PostgresPool.open(url)
    acknowledged: list[str] = []
    ends = threading.Event()

    def load(name: str) -> None:
        pool.put(TrajectoryInfo(id=name))
        index = 0
        while not ends.is_set():
            steps = [make_step(name, index + more, prompt=range(1, 4 + index)) for more in range(3)]
            receipts = pool.append(steps).result(60)
            assert [receipt.error for receipt in receipts] == [None] * 3
            acknowledged.extend(step.id for step in steps)
            index += 3

    def grow_by(count: int) -> None:
        goal = len(acknowledged) + count
        while len(acknowledged) < goal:
            assert all(thread.is_alive() for thread in threads)
            pool.stats()

    threads = [threading.Thread(target=load, args=(f"t{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        grow_by(60)
        server.stop()
        server.start()
    grow_by(60)
    ends.set()
    for thread in threads:
        thread.join()
    stored = [step.id for number in range(3) for step in pool.trajectory(f"t{number}").steps]
    assert sorted(stored) == sorted(acknowledged)
    assert pool.stats().steps == len(set(stored))
    pool.close()


def test_an_idle_pool_does_not_notice_a_restart(url: str, server: Server) -> None:
    pool, reader = PostgresPool.open(url), PostgresPool.open(url, read_only=True)
    pool.put(TrajectoryInfo(id="t"), step := make_step("t"))
    assert reader.step(step.id) == step
    server.stop()
    server.start()
    assert reader.step(step.id) == step
    pool.put(Annotation.end("t", "terminated"))
    assert reader.trajectory("t").status == "terminated"
    pool.close()
    reader.close()


def test_operations_fail_once_the_server_is_away_for_too_long_and_succeed_once_it_is_back(
    url: str, server: Server
) -> None:
    pool = PostgresPool.open(url, patience=0.2)
    pool.put(TrajectoryInfo(id="before"))
    server.stop()
    try:
        for ask in (
            pool.stats,
            lambda: pool.put(TrajectoryInfo(id="during")),
            lambda: pool.lease(LeaseSpec(consumer="one", limit=1)),
        ):
            with pytest.raises(PoolError, match=r"away for more than 0\.2 s.*start it again"):
                ask()
    finally:
        server.start()
    pool.put(TrajectoryInfo(id="after"))
    assert [line.info.id for _, line in pool.trajectories()] == ["after", "before"]
    pool.close()


def test_writers_take_turns_whatever_it_is_that_they_write(url: str) -> None:
    pools = [PostgresPool.open(url) for _ in range(2)]
    first, second = (pool._writer for pool in pools)
    assert first is not None
    assert second is not None
    started, ends = threading.Event(), threading.Event()
    first.call(lambda _: started.set() or ends.wait(60))
    started.wait(60)
    nothing = second.call(lambda _: "its turn")
    with psycopg.connect(url, autocommit=True) as other:
        while other.execute(WAITING).fetchone() == (0,):
            assert not nothing.done()
            time.sleep(0.01)
    ends.set()
    assert nothing.result(60) == "its turn"
    for pool in pools:
        pool.close()


def test_a_deadlock_with_somebody_else_only_costs_another_try(url: str) -> None:
    pool = PostgresPool.open(url)
    pool.put(TrajectoryInfo(id="t"))
    with psycopg.connect(url) as other:
        other.execute("SELECT 1 FROM trajectories WHERE id = 't' FOR UPDATE")
        appended = pool.append([make_step("t")])  # takes its turn, then waits for the row
        while other.execute(WAITING).fetchone() == (0,):
            time.sleep(0.01)
        try:
            other.execute("SELECT 1 FROM meta WHERE name = 'cursor' FOR UPDATE")
        except psycopg.errors.DeadlockDetected:
            other.rollback()
    assert [receipt.error for receipt in appended.result(60)] == [None]
    assert pool.stats().steps == 1
    pool.close()


def test_leases_expire_by_the_clock_of_the_server(url: str) -> None:
    pool = PostgresPool.open(url)
    with psycopg.connect(url, autocommit=True) as connection:
        now = "SELECT extract(epoch FROM clock_timestamp())::float8"
        (before,) = connection.execute(now).fetchone()
        lease = pool.lease(LeaseSpec(consumer="one", limit=1))
        (after,) = connection.execute(now).fetchone()
    assert before <= lease.expires_at - 600 <= after
    pool.close()


def test_compressed_columns_are_not_compressed_again(url: str) -> None:
    kinds = "SELECT DISTINCT attstorage FROM pg_attribute WHERE attrelid = 'steps'::regclass AND atttypid = 17"  # bytea
    with psycopg.connect(url) as connection:
        assert connection.execute(kinds).fetchall() == [("e",)]


def test_a_commit_waits_for_the_disk_even_where_the_server_would_not(url: str) -> None:
    name = url.rsplit("/", 1)[1]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        pool = PostgresPool.open(url)
        shown = pool._writer.call(lambda own: own.exec_driver_sql("SHOW synchronous_commit").scalar_one()).result(60)
        connection.execute(f"ALTER DATABASE {name} RESET synchronous_commit")
    assert shown == "on"
    pool.close()


def test_errors_name_the_server_but_never_the_password(server: Server) -> None:
    url = server.url("nowhere").replace("@", ":s3cret@")
    with pytest.raises(PoolError, match=r"127\.0\.0\.1.*nowhere.*does not exist") as caught:
        PostgresPool.open(url)
    assert "s3cret" not in str(caught.value)


def test_a_location_is_shown_without_its_password() -> None:
    shown = without_password("postgresql://me:s3cret@db.example/pool?password=s3cret")
    assert shown == "postgresql://me:***@db.example/pool"
    assert without_password(Path("runs/pool.sqlite")) == "runs/pool.sqlite"


def test_the_command_line_takes_a_url(url: str) -> None:
    pool = PostgresPool.open(url)
    pool.put(TrajectoryInfo(id="t", agent="curl"))
    pool.close()
    shown = CliRunner().invoke(app, ["ls", "--json", "--pool", url], catch_exceptions=False).stdout
    assert [line["info"]["id"] for line in json.loads(shown)] == ["t"]


def test_a_malformed_url_is_an_invalid_request_that_keeps_the_password() -> None:
    with pytest.raises(InvalidRequest, match="postgresql://user@host") as caught:
        PostgresPool.open("postgresql://me:s3cret@host:port/pool")
    assert "s3cret" not in str(caught.value)


def test_a_database_without_a_pool_is_not_read(database: str) -> None:
    with pytest.raises(PoolError, match="empty"):
        PostgresPool.open(database, read_only=True)
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE meta (name TEXT)")
    with pytest.raises(PoolError, match="not of a Stepwell pool"):
        PostgresPool.open(database)
