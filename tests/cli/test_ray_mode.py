"""A run on a Ray cluster: two nodes with addresses of their own on this machine, one of whose players is killed."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell.cli import fleet
from stepwell.cli.config import RecipeConfig
from stepwell.cli.fleet import workers
from stepwell.cli.fleet.jobs import Failed, Groups, Told
from stepwell.cli.fleet.post import Post, Posting
from stepwell.cli.fleet.workers import Workers
from stepwell.cli.playing import PlayConfig
from stepwell.cli.recipes import find_recipe
from stepwell.cli.training import Progress, training_run
from stepwell.config import load_config
from stepwell.errors import EnvironmentFailed, InvalidRequest, MissingDependency, Unavailable
from stepwell.pool.store import SQLitePool
from stepwell.types import UpdateInfo
from tests.pool.postgres import running

SMALL = (
    "mode=ray",
    "trainer.groups_per_update=4",
    "trainer.stop_at_reward=null",
    "trainer.checkpoint_every=1",
    "rollout.group_size=2",
    "rollout.workers=2",
    "warmup.updates=3",
)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'stepwell[ray]'")


def recipe(*settings: str) -> RecipeConfig:
    return load_config(RecipeConfig, find_recipe("lookup"), [*SMALL, *settings])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, one of which believes that it is another machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - an optional dependency

        small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=small)
        try:
            made.add_node(num_cpus=1, object_store_memory=80 * 2**20, node_ip_address="127.0.0.2")
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            made.shutdown()


def players() -> list[int]:
    """Process ids of actors that play."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"ray::PlayerActor" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@needs_ray
@pytest.mark.slow
def test_a_run_on_two_machines_whose_player_is_killed_goes_on_to_its_end(tmp_path: Path, cluster: Any) -> None:
    seen: list[int] = []

    def watch(update: UpdateInfo) -> None:
        seen.append(update.policy_version)
        if update.policy_version == 2:
            os.kill(players()[0], signal.SIGKILL)

    with running() as server:
        url = server.create("run")
        with training_run(recipe("trainer.updates=4", f"pool={url}"), tmp_path, Progress(on_update=watch)) as run:
            assert "127.0.0.1" not in run.served.url
            updates = asyncio.run(run.train())
            stats = run.served.pool.stats()
    assert seen == [1, 2, 3, 4]
    assert all(dict(update.metrics)["staleness_max"] == 0 for update in updates)
    assert dict(stats.trajectories_by_status).get("open", 0) == 0
    assert not players()


@needs_ray
@pytest.mark.slow
def test_a_pool_in_a_file_is_refused_where_there_are_several_machines(tmp_path: Path, cluster: Any) -> None:
    run = training_run(recipe("trainer.updates=1"), tmp_path)
    with pytest.raises(InvalidRequest, match=r"2 machines.*pool=postgresql://"), run:
        pass


async def plays(posting: Posting, players: int) -> None:
    """So many players at that post have a group to make."""
    from stepwell.cli.fleet.cluster import Actor, joined  # noqa: PLC0415 - an optional dependency

    async def begin() -> Actor:
        return await Actor.begin(posting, players)

    pool = SQLitePool.open(Path(posting.pool))
    try:
        with joined(players):
            async with Workers(begin, players, pool) as crew:
                await crew.groups(iter(["t"]), 1, 2, lambda: None)
    finally:
        pool.close()


def post(folder: Path, environment: str = "lookup") -> Posting:
    play = PlayConfig(environment={"use": environment})
    return Posting(recipe=play, url="http://127.0.0.1:9", model="lookup", pool=str(folder / "pool.sqlite"))


BROKEN = """
from stepwell.environments.lookup import LookupConfig

class Broken(LookupConfig):
    def build(self):
        raise ValueError("no corpus on this node")
"""


@needs_ray
@pytest.mark.slow
async def test_players_who_cannot_start_end_the_run_which_says_why(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_DEATHS", 1)
    (tmp_path / "broken.py").write_text(BROKEN)
    with pytest.raises(EnvironmentFailed, match="died 2 times, the last time with ValueError: no corpus on this node"):
        await plays(post(tmp_path, f"{tmp_path}/broken.py:Broken"), 1)
    assert not players()


@needs_ray
@pytest.mark.slow
async def test_more_players_than_cpus_are_an_error_that_says_how_many_there_are(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.cli.fleet.cluster._GRACE", 1.0)
    with pytest.raises(EnvironmentFailed, match=r"2 CPUs on 2 nodes, and 3 players .* set rollout.workers=2"):
        await plays(post(tmp_path), 3)
    assert not players()


class Dance(msgspec.Struct, tag="dance", frozen=True):
    """A job that nobody knows, as where a node has another Stepwell."""

    job: int


@needs_ray
@pytest.mark.slow
async def test_a_player_who_cannot_take_a_job_is_over(tmp_path: Path, cluster: Any) -> None:
    from stepwell.cli.fleet.cluster import Actor, joined  # noqa: PLC0415 - an optional dependency

    SQLitePool.open(tmp_path / "pool.sqlite").close()
    with joined(1):
        life = await Actor.begin(post(tmp_path), 1)
        life.send(Dance(1))
        assert [told async for told in life.told()] == []
        assert "dance" in await life.cause()


@needs_ray
def test_a_named_cluster_that_is_not_there_is_not_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.cli.fleet.cluster import joined  # noqa: PLC0415 - an optional dependency

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"no Ray cluster answers at 127\.0\.0\.1:9.*RAY_ADDRESS"), joined(1):
        pass


async def test_a_job_that_would_end_the_process_of_its_player_has_failed() -> None:
    """In an actor, nothing would run from then on, and nobody would hear of it."""
    told: asyncio.Queue[Told] = asyncio.Queue()

    class Leaves:
        async def groups(self, *_: object) -> int:
            raise SystemExit(3)

    Post(Leaves(), told.put_nowait).take(Groups(1, ["t"], 2))
    assert await told.get() == Failed(1, "EnvironmentFailed", "SystemExit: 3")


def test_without_ray_the_mode_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stepwell.cli.fleet.cluster", raising=False)
    monkeypatch.delattr(fleet, "cluster", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    run = training_run(recipe("trainer.updates=1", "warmup.updates=0"), tmp_path)
    with pytest.raises(MissingDependency, match=r"stepwell\[ray\]"), run:
        pass
