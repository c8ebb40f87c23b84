"""The stores that the laws are run on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell.pool.base import Pool
from stepwell.pool.store import SQLitePool


class FakeClock:
    """A clock that only the test moves; Unix time in seconds."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def open_sqlite(folder: Path, clock: Callable[[], float]) -> Pool:
    return SQLitePool.open(folder / "pool.sqlite", clock=clock)


STORES = {"sqlite": open_sqlite}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=sorted(STORES))
def pool(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Pool]:
    opened = STORES[request.param](tmp_path, clock)
    yield opened
    opened.close()
