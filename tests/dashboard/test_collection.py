"""Activity within a window: everything in it and nothing else, in intervals that stay where they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.dashboard.reading.collection import PARTS, WINDOWS, read_collection
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, TrajectoryInfo
from tests.pool.builders import make_step

NOW = 1_000_000.0


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    """A trajectory now, one two hours ago, one long ago; each with a step."""
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    for name, at in (("now", NOW), ("lately", NOW - 7200), ("long-ago", 5.0)):
        pool.put(TrajectoryInfo(id=name, created_at=at), make_step(name, created_at=at, finish_reason="abort"))
        pool.put(Annotation.end(name, "failed", "503"))
    yield pool
    pool.close()


@pytest.mark.parametrize(("window", "seen"), [("15 min", 1), ("1 h", 1), ("6 h", 2), ("24 h", 2), ("all", 3), ("x", 3)])
def test_a_window_has_what_came_within_it(pool: SQLitePool, window: str, seen: int) -> None:
    found = read_collection(pool, window, NOW)
    assert (found.trajectories, found.steps, found.aborted, found.failed) == (seen,) * 4
    assert found.response_tokens == 2 * seen
    assert len(found.activity.intervals) == PARTS


@pytest.mark.parametrize("window", [name for name, seconds in WINDOWS.items() if seconds])
def test_intervals_do_not_move_with_the_clock(pool: SQLitePool, window: str) -> None:
    width = (WINDOWS[window] or 0) / PARTS
    first = NOW // width * width
    early, late = (read_collection(pool, window, first + share * width).activity for share in (0.01, 0.99))
    assert early.intervals == late.intervals
    assert read_collection(pool, window, first + 1.01 * width).activity.since == pytest.approx(early.since + width)


def test_an_empty_pool_has_an_empty_window(tmp_path: Path) -> None:
    pool = SQLitePool.open(tmp_path / "empty.sqlite")
    for window in WINDOWS:
        found = read_collection(pool, window, NOW)
        assert (found.trajectories, found.steps, found.activity.sessions) == (0, 0, ())
        assert found.minutes > 0
    pool.close()
