import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepwell.errors import NotFound, PoolError
from stepwell.pool import schema
from stepwell.pool.store import SQLitePool
from stepwell.types import TrajectoryInfo
from tests.pool.builders import make_step, ready_group


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pool.sqlite"


def spawn(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.pool.children", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def output(child: "subprocess.Popen[str]") -> list[str]:
    lines = child.communicate(timeout=120)[0].splitlines()
    assert child.returncode == 0
    return lines


def test_everything_survives_closing_and_opening_again(path: Path) -> None:
    records = ready_group("g")
    pool = SQLitePool.open(path)
    pool.put(*records)
    pool.acknowledge(pool.lease("one", limit=1).id)
    group, stats = pool.group("g"), pool.stats()
    pool.close()
    again = SQLitePool.open(str(path))
    assert (again.group("g"), again.stats()) == (group, stats)
    assert again.lease("one", limit=1).groups == ()
    assert all(receipt.duplicate for receipt in again.append(records).result())
    again.close()


def test_a_trajectory_goes_on_after_opening_again(path: Path) -> None:
    steps = [make_step("t", index, prompt=range(1, 9 + index)) for index in range(4)]
    for records in ([TrajectoryInfo(id="t"), *steps[:2]], steps[2:]):
        pool = SQLitePool.open(path)
        pool.put(*records)
        pool.close()
    pool = SQLitePool.open(path, read_only=True)
    assert pool.trajectory("t").steps == tuple(steps)
    pool.close()


def test_opening_makes_the_missing_folders(tmp_path: Path) -> None:
    SQLitePool.open(tmp_path / "runs" / "latest" / "pool.sqlite").close()
    assert (tmp_path / "runs" / "latest" / "pool.sqlite").exists()


def test_odd_characters_in_the_path_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%20é.sqlite"
    SQLitePool.open(path).close()
    assert path.exists()


def test_a_killed_process_loses_nothing_acknowledged_and_duplicates_nothing(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "acknowledged"
    log.touch()
    for kill in range(1, 6):
        child = spawn("append_for_ever", path, log)
        before = len(log.read_text().splitlines())
        while len(log.read_text().splitlines()) < before + 20 * kill:
            assert child.poll() is None
            time.sleep(0.005)
        child.kill()
        child.communicate()
    pool = SQLitePool.open(path)
    stored = [step for _, line in pool.trajectories() for step in pool.trajectory(line.info.id).steps]
    ids = [step.id for step in stored]
    acknowledged = log.read_text().split("\n")[:-1]
    assert set(acknowledged) <= set(ids)
    assert len(ids) == len(set(ids)) == pool.stats().steps
    assert all(
        step
        == make_step(step.trajectory_id, step.index, range(1, 4 + step.index), id=step.id, created_at=step.created_at)
        for step in stored
    )
    pool.close()


def test_two_processes_append_to_one_file(path: Path) -> None:
    children = [spawn("append_some", path, name, 40) for name in ("one", "two")]
    for child in children:
        output(child)
    pool = SQLitePool.open(path, read_only=True)
    assert [len(pool.trajectory(name).steps) for name in ("one", "two")] == [40, 40]
    assert pool.stats().cursor == 82
    pool.close()


def test_two_processes_never_lease_the_same_group(path: Path) -> None:
    names = [f"g{number}" for number in range(20)]
    pool = SQLitePool.open(path)
    pool.put(*(record for name in names for record in ready_group(name, size=1)))
    children = [spawn("lease_all", path) for _ in range(2)]
    assert sorted(output(children[0]) + output(children[1])) == sorted(names)
    pool.close()


def test_a_full_disk_is_a_pool_error_and_the_pool_goes_on_when_there_is_room(path: Path) -> None:
    refused, indexes = output(spawn("fill_the_disk", path))
    assert refused.startswith("PoolError: pool.sqlite: ")  # not where the file is: clients of a gateway read it too
    assert indexes == "0 1 2"


def test_reading_a_file_that_is_missing_is_not_found(path: Path) -> None:
    with pytest.raises(NotFound, match=r"pool\.sqlite"):
        SQLitePool.open(path, read_only=True)
    assert not path.exists()


def test_a_pool_opened_read_only_refuses_to_write(path: Path) -> None:
    SQLitePool.open(path).close()
    pool = SQLitePool.open(path, read_only=True)
    assert isinstance(pool.append([TrajectoryInfo()]).exception(), PoolError)
    for write in (lambda: pool.put(TrajectoryInfo()), lambda: pool.lease("one", limit=1), lambda: pool.release("x")):
        with pytest.raises(PoolError, match="read-only"):
            write()
    assert pool.stats().cursor == 0
    pool.close()


def test_a_reader_in_another_pool_sees_what_is_acknowledged(path: Path) -> None:
    writer = SQLitePool.open(path)
    reader = SQLitePool.open(path, read_only=True)
    for number in range(3):
        writer.put(TrajectoryInfo(id=f"t{number}"))
        assert reader.stats().trajectories == number + 1
    writer.close()
    assert reader.trajectory("t2").info.id == "t2"
    reader.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_a_pool_error_that_names_it(path: Path, read_only: bool) -> None:
    path.write_text("These are not the bytes you are looking for. " * 50)
    with pytest.raises(PoolError, match=r"pool\.sqlite.*not a database"):
        SQLitePool.open(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_of_something_else_is_refused_and_left_alone(path: Path, read_only: bool) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE meta (name TEXT)")
    with pytest.raises(PoolError, match="not of a Stepwell pool"):
        SQLitePool.open(path, read_only=read_only)
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)
    connection.close()


def test_a_pool_of_a_newer_version_is_refused(path: Path) -> None:
    SQLitePool.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", (schema.SCHEMA_VERSION + 1,))
    connection.commit()
    connection.close()
    for read_only in (False, True):
        with pytest.raises(PoolError, match=r"version 3.*upgrade Stepwell"):
            SQLitePool.open(path, read_only=read_only)


def test_a_folder_is_not_a_pool(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="cannot be opened"):
        SQLitePool.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(PoolError, match="cannot make the folder"):
        SQLitePool.open(tmp_path / "file" / "pool.sqlite")


def test_damaged_pages_are_a_pool_error_and_no_crash(path: Path) -> None:
    pool = SQLitePool.open(path)
    pool.put(TrajectoryInfo(id="t"), *(make_step("t", index) for index in range(200)))
    pool.close()
    connection = sqlite3.connect(path)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'steps'").fetchone()
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * page_size)
        file.write(b"\xaa" * page_size)
    damaged = SQLitePool.open(path)
    with pytest.raises(PoolError, match=r"pool\.sqlite"):
        damaged.trajectory("t")
    damaged.close()


def test_closing_finishes_what_was_appended(path: Path) -> None:
    pool = SQLitePool.open(path)
    futures = [pool.append([TrajectoryInfo(id=f"t{number}")]) for number in range(100)]
    pool.close()
    assert all(future.result(timeout=0)[0].error is None for future in futures)


def test_a_closed_pool_refuses_everything(path: Path) -> None:
    pool = SQLitePool.open(path)
    pool.close()
    pool.close()
    assert isinstance(pool.append([TrajectoryInfo()]).exception(timeout=10), PoolError)
    for ask in (pool.stats, lambda: pool.lease("one", limit=1)):
        with pytest.raises(PoolError, match="closed"):
            ask()
