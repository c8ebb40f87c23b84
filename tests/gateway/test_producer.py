"""The gateway as a producer: who waits for a live one is told nothing, who waits for one that is gone is."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from stepwell.errors import NoProducer, PoolError
from stepwell.gateway.app import create_app
from stepwell.gateway.producer import ALIVE_SECONDS, producing
from stepwell.pool.lease import Lease, LeaseSpec
from stepwell.pool.schema import producers
from stepwell.pool.store import SQLitePool
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving, wait_until

ROOT = Path(__file__).parents[2]


def known(pool: SQLitePool) -> dict[str, float]:
    """Producers, and until when each counts as alive."""
    rows = pool._read(lambda connection: connection.execute(sa.select(producers)).all())
    return {row.name: row.alive_until for row in rows}


def waiting(pool: SQLitePool) -> Lease:
    return pool.lease(LeaseSpec(consumer="c", wait=0.1))


def test_a_gateway_is_a_producer_while_it_serves_and_none_from_its_end_on(pool):
    renderer = tiny_renderer("line")
    with serving(create_app(ScriptedEngine(renderer), renderer, pool)):
        ((name, until),) = known(pool).items()
        assert name.startswith("gateway-")
        assert ALIVE_SECONDS - 20 < until - time.time() <= ALIVE_SECONDS
        assert waiting(pool).groups == ()
    assert known(pool)[name] <= time.time()
    with pytest.raises(NoProducer):
        waiting(pool)


def test_of_two_gateways_on_one_pool_one_is_enough(pool):
    renderer = tiny_renderer("line")
    apps = [create_app(ScriptedEngine(renderer), renderer, pool) for _ in range(2)]
    with serving(apps[0]):
        with serving(apps[1]):
            assert len(known(pool)) == 2
        assert waiting(pool).groups == ()


async def test_it_says_so_again_and_again(pool):
    async with producing(pool, seconds=0.03):
        first = known(pool)
        await asyncio.to_thread(wait_until, lambda: known(pool) != first)


async def test_a_pool_that_cannot_be_written_is_logged_and_does_not_stop_it(caplog):
    class Full:
        def heartbeat(self, producer: str, seconds: float) -> None:
            raise PoolError("disk full")

    async with producing(Full()):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "the pool was not told that this gateway is alive: disk full"
    ] * 2


def test_producers_of_which_nothing_was_heard_for_a_day_are_forgotten(pool):
    pool.heartbeat("old", 1)
    pool.heartbeat("new", 86_500)
    assert list(known(pool)) == ["new"]


SERVER = """
import sys, time
from stepwell.gateway.app import create_app
from stepwell.pool.store import SQLitePool
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving

renderer = tiny_renderer("line")
with serving(create_app(ScriptedEngine(renderer), renderer, SQLitePool.open(sys.argv[1]))) as url:
    print(url, flush=True)
    time.sleep(600)
"""


@contextmanager
def opened(path: Path, later: float = 0.0) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(path, clock=lambda: time.time() + later)
    yield pool
    pool.close()


def test_who_waits_for_a_gateway_that_was_killed_is_told_once_its_last_sign_of_life_counts_no_more(tmp_path):
    path = tmp_path / "shared.sqlite"
    with subprocess.Popen([sys.executable, "-c", SERVER, path], stdout=subprocess.PIPE, cwd=ROOT) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline().startswith(b"http://")
        with opened(path) as pool:
            assert waiting(pool).groups == ()
        gateway.kill()
    with opened(path) as pool:
        assert waiting(pool).groups == ()
    with opened(path, later=ALIVE_SECONDS) as pool, pytest.raises(NoProducer, match="Start the gateway"):
        waiting(pool)
