"""Where forks come from is read once for all siblings, but never while it still grows."""

import pytest

from stepwell.gateway.origin import Pasts
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, TrajectoryInfo
from tests.adapters.builders import step


@pytest.fixture
def read(pool: SQLitePool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trajectories that are read from the pool, in order."""
    names: list[str] = []
    find = pool.trajectory
    monkeypatch.setattr(pool, "trajectory", lambda name: (names.append(name), find(name))[1])
    return names


def fork(pool: SQLitePool, origin: str, index: int, name: str) -> TrajectoryInfo:
    group = GroupInfo(task_id="t", size=2, origin_id=origin, origin_index=index)
    info = TrajectoryInfo(id=name, group_id=group.id)
    pool.put(group, info)
    return info


def recorded(pool: SQLitePool, name: str, steps: int) -> None:
    pool.put(TrajectoryInfo(id=name), *(step(name, index, 4, 2) for index in range(steps)))


def test_siblings_share_what_has_ended(pool: SQLitePool, read: list[str]) -> None:
    recorded(pool, "trunk", 3)
    pool.put(Annotation.end("trunk", "terminated"))
    pasts = Pasts(pool)
    for number, index in enumerate((2, 2, 1, 1)):
        origin = pasts.origin_of(fork(pool, "trunk", index, f"fork-{number}"))
        assert origin is not None
        assert [past.index for past in origin.past] == list(range(index))
    assert read == ["trunk"]


def test_what_is_under_way_is_read_again(pool: SQLitePool, read: list[str]) -> None:
    recorded(pool, "trunk", 1)
    pasts = Pasts(pool)
    assert pasts.origin_of(fork(pool, "trunk", 1, "early")) is not None
    pool.put(step("trunk", 1, 4, 2))
    origin = pasts.origin_of(fork(pool, "trunk", 2, "late"))
    assert origin is not None
    assert len(origin.past) == 2
    assert read == ["trunk", "trunk"]


def test_what_was_needed_last_is_kept_within_the_limit(pool: SQLitePool, read: list[str]) -> None:
    for name in ("a", "b", "c"):
        recorded(pool, name, 2)
        pool.put(Annotation.end(name, "terminated"))
    pasts = Pasts(pool, tokens=24)  # two of them have 12 each
    for number, name in enumerate("abacab"):
        assert pasts.origin_of(fork(pool, name, 1, f"fork-{number}")) is not None
    assert read == ["a", "b", "c", "b"]


def test_one_that_is_larger_than_the_limit_is_found_too(pool: SQLitePool, read: list[str]) -> None:
    recorded(pool, "trunk", 2)
    pool.put(Annotation.end("trunk", "terminated"))
    pasts = Pasts(pool, tokens=1)
    assert all(pasts.origin_of(fork(pool, "trunk", 1, name)) is not None for name in ("x", "y"))
    assert read == ["trunk", "trunk"]


def test_a_trajectory_of_its_own_has_no_origin(pool: SQLitePool) -> None:
    recorded(pool, "alone", 1)
    assert Pasts(pool).origin_of(pool.trajectory("alone").info) is None
