import sqlite3
from pathlib import Path

import pytest

from stepwell.errors import NotFound, PoolError
from stepwell.pool.sqlite import SQLitePool
from stepwell.types import TrajectoryInfo
from tests.pool.builders import make_step
from tests.pool.children import lines_of, spawn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pool.sqlite"


def test_opening_makes_the_missing_folders(tmp_path: Path) -> None:
    SQLitePool.open(tmp_path / "runs" / "latest" / "pool.sqlite").close()
    assert (tmp_path / "runs" / "latest" / "pool.sqlite").exists()


def test_odd_characters_in_the_path_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%20é.sqlite"
    SQLitePool.open(path).close()
    assert path.exists()


def test_a_full_disk_is_a_pool_error_and_the_pool_goes_on_when_there_is_room(path: Path) -> None:
    refused, indexes = lines_of(spawn("fill_the_disk", path))
    assert refused.startswith("PoolError: pool.sqlite: ")  # not where the file is: clients of a gateway read it too
    assert indexes == "0 1 2"


def test_reading_a_file_that_is_missing_is_not_found(path: Path) -> None:
    with pytest.raises(NotFound, match=r"pool\.sqlite"):
        SQLitePool.open(path, read_only=True)
    assert not path.exists()


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


def test_a_file_that_may_not_be_used_is_a_pool_error_that_says_what_to_do() -> None:
    to_write, to_read, to_reach = lines_of(spawn("open_what_may_not_be_used"))
    for line in (to_write, to_read):
        assert line.endswith(
            "SQLite must be allowed to write the file and its folder, even to read: allow it, or copy it"
        )
    assert to_reach.endswith("pool.sqlite cannot be reached: Permission denied")


def test_while_its_file_is_moved_away_a_pool_is_neither_read_nor_written(path: Path) -> None:
    pool, away = SQLitePool.open(path), path.with_name("away.sqlite")
    pool.put(TrajectoryInfo(id="before"))
    path.rename(away)
    for _ in range(2):  # nor does a connection that is made anew make a new file
        refused(pool)
        assert not path.exists()
    away.rename(path)
    pool.put(TrajectoryInfo(id="after"))
    assert [line.info.id for _, line in pool.trajectories()] == ["after", "before"]
    pool.close()


def test_a_pool_is_neither_read_nor_written_once_another_file_is_in_its_place(path: Path, tmp_path: Path) -> None:
    pool, other = SQLitePool.open(path), tmp_path / "other.sqlite"
    SQLitePool.open(other).close()
    other.replace(path)
    refused(pool)
    pool.close()


def refused(pool: SQLitePool) -> None:
    for ask in (lambda: pool.put(TrajectoryInfo(id="lost")), lambda: pool.release_all("c"), pool.cursor):
        with pytest.raises(PoolError, match=r"^pool.sqlite: the file was moved away or replaced"):
            ask()
