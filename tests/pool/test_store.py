import sys
import threading
from pathlib import Path

import pytest

from stepwell.errors import InvalidRequest, MissingDependency, PoolError
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import open_pool
from stepwell.types import TrajectoryInfo
from tests.pool.builders import make_step, ready_group
from tests.pool.children import lines_of, spawn
from tests.pool.conftest import FakeClock


def test_everything_survives_closing_and_opening_again(location: str) -> None:
    records = ready_group("g")
    pool = open_pool(location)
    pool.put(*records)
    pool.acknowledge(pool.lease(LeaseSpec(consumer="one", limit=1)).id)
    group, stats = pool.group("g"), pool.stats()
    pool.close()
    again = open_pool(location)
    assert (again.group("g"), again.stats()) == (group, stats)
    assert again.lease(LeaseSpec(consumer="one", limit=1)).groups == ()
    assert all(receipt.duplicate for receipt in again.append(records).result())
    again.close()


def test_a_trajectory_goes_on_after_opening_again(location: str) -> None:
    steps = [make_step("t", index, prompt=range(1, 9 + index)) for index in range(4)]
    for records in ([TrajectoryInfo(id="t"), *steps[:2]], steps[2:]):
        pool = open_pool(location)
        pool.put(*records)
        pool.close()
    pool = open_pool(location, read_only=True)
    assert pool.trajectory("t").steps == tuple(steps)
    pool.close()


def test_two_processes_append_to_one_file(location: str) -> None:
    children = [spawn("append_some", location, name, 40) for name in ("one", "two")]
    for child in children:
        lines_of(child)
    pool = open_pool(location, read_only=True)
    assert [len(pool.trajectory(name).steps) for name in ("one", "two")] == [40, 40]
    assert pool.stats().cursor == 82
    pool.close()


def test_two_processes_never_lease_the_same_group(location: str) -> None:
    names = [f"g{number}" for number in range(20)]
    pool = open_pool(location)
    pool.put(*(record for name in names for record in ready_group(name, size=1)))
    children = [spawn("lease_all", location) for _ in range(2)]
    assert sorted(lines_of(children[0]) + lines_of(children[1])) == sorted(names)
    pool.close()


def test_a_pool_opened_read_only_refuses_to_write(location: str) -> None:
    open_pool(location).close()
    pool = open_pool(location, read_only=True)
    assert isinstance(pool.append([TrajectoryInfo()]).exception(), PoolError)
    for write in (
        lambda: pool.put(TrajectoryInfo()),
        lambda: pool.lease(LeaseSpec(consumer="one", limit=1)),
        lambda: pool.release("x"),
    ):
        with pytest.raises(PoolError, match="read-only"):
            write()
    assert pool.stats().cursor == 0
    pool.close()


def test_a_reader_in_another_pool_sees_what_is_acknowledged(location: str) -> None:
    writer = open_pool(location)
    reader = open_pool(location, read_only=True)
    for number in range(3):
        writer.put(TrajectoryInfo(id=f"t{number}"))
        assert reader.stats().trajectories == number + 1
    writer.close()
    assert reader.trajectory("t2").info.id == "t2"
    reader.close()


def test_closing_finishes_what_was_appended(location: str) -> None:
    pool = open_pool(location)
    futures = [pool.append([TrajectoryInfo(id=f"t{number}")]) for number in range(100)]
    pool.close()
    assert all(future.result(timeout=0)[0].error is None for future in futures)


def test_a_closed_pool_refuses_everything(location: str) -> None:
    pool = open_pool(location)
    pool.close()
    pool.close()
    assert isinstance(pool.append([TrajectoryInfo()]).exception(timeout=10), PoolError)
    for ask in (pool.stats, lambda: pool.lease(LeaseSpec(consumer="one", limit=1))):
        with pytest.raises(PoolError, match="closed"):
            ask()


def test_a_lease_whose_holder_was_killed_is_handed_over_again_once_it_expires(location: str, clock: FakeClock) -> None:
    pool = open_pool(location, clock=clock)
    pool.put(*ready_group("g"))
    holder = spawn("hold_a_lease", location, clock.now, 60)
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "g"
    holder.kill()
    holder.communicate()
    assert pool.lease(LeaseSpec(consumer="trainer", limit=1)).groups == ()
    clock.advance(60)
    assert [group.info.id for group in pool.lease(LeaseSpec(consumer="trainer", limit=1)).groups] == ["g"]
    pool.close()


def test_a_reader_sees_whole_commits_while_others_write(location: str) -> None:
    pool = open_pool(location)
    ends = threading.Event()

    def write() -> None:
        for number in range(150):
            pool.put(TrajectoryInfo(id=f"t{number}"), make_step(f"t{number}"))
        ends.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not ends.is_set():
        stats = pool.stats()
        assert stats.trajectories == stats.steps == stats.cursor / 2
        seen.append(stats.steps)
    writer.join()
    assert seen == sorted(seen)
    assert pool.stats().steps == 150
    pool.close()


def test_a_path_and_a_sqlite_url_are_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "pool.sqlite"
    first = open_pool(path)
    first.put(TrajectoryInfo(id="t"))
    for location in (path, str(path), f"sqlite:///{path}"):
        again = open_pool(location, read_only=True)
        assert again.trajectory("t").info.id == "t"
        again.close()
    first.close()


@pytest.mark.parametrize("location", ["mysql://host/pool", "sqlite://", "http://127.0.0.1:8000"])
def test_a_location_of_another_kind_is_an_invalid_request(location: str) -> None:
    with pytest.raises(InvalidRequest, match="postgresql://"):
        open_pool(location)


def test_a_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stepwell.pool.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependency, match=r"pip install 'stepwell\[postgres\]'"):
        open_pool("postgresql://somebody@127.0.0.1/pool")
