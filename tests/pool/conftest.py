"""The stores that the laws are run on, each at a location that the tests of one function have for themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from stepwell.pool import schema
from stepwell.pool.base import Pool
from stepwell.pool.store import open_pool
from tests.pool.postgres import Server, running

_TABLES = ", ".join(sorted(schema.metadata.tables.keys() - {"meta"}))
_EMPTIED = (
    f"TRUNCATE {', '.join(sorted(schema.metadata.tables.keys() - {'meta'}))}; UPDATE meta SET value = 0; "
    "DROP TABLE IF EXISTS step_texts"  # which the first search makes
)


class FakeClock:
    """A clock that only the test moves; Unix time in seconds."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The PostgreSQL server of these tests."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def prepared(server: Server) -> str:
    """URL of a PostgreSQL database with the tables of a pool; to empty them is faster than to make them."""
    url = server.create("prepared")
    open_pool(url).close()
    return url


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """URL of a PostgreSQL database without any table."""
    yield server.create("empty")
    server.drop("empty")


def at_sqlite(request: pytest.FixtureRequest) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return str(folder / "pool.sqlite")


def at_postgresql(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("prepared")
    with psycopg.connect(url) as connection:
        connection.execute(_EMPTIED)
    return url


STORES: dict[str, Callable[[pytest.FixtureRequest], str]] = {"postgresql": at_postgresql, "sqlite": at_sqlite}


@pytest.fixture(params=sorted(STORES))
def location(request: pytest.FixtureRequest) -> str:
    """Where an empty pool is, or will be once it is opened; of each store."""
    return STORES[request.param](request)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool(location: str, clock: FakeClock) -> Iterator[Pool]:
    opened = open_pool(location, clock=clock)
    yield opened
    opened.close()


@contextmanager
def connected(location: str) -> Iterator[sa.Connection]:
    """A transaction behind the back of a pool."""
    url = location.replace("postgresql:", "postgresql+psycopg:") if "://" in location else f"sqlite:///{location}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()
