"""A run in several processes, any of which is killed: it goes on, and nothing is trained on twice."""

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from stepwell.cli.config import RecipeConfig
from stepwell.cli.parts import POOL_FILE
from stepwell.cli.recipes import find_recipe
from stepwell.cli.training import Progress, training_run
from stepwell.config import load_config
from stepwell.errors import InvalidRequest
from stepwell.pool.store import SQLitePool
from stepwell.types import UpdateInfo
from tests.cli.processes import Finished, stepwell

SMALL = (
    "mode=local",
    "trainer.groups_per_update=4",
    "rollout.group_size=2",
    "warmup.updates=3",
    "trainer.stop_at_reward=null",
    "trainer.checkpoint_every=1",
)
_PATIENCE = 120.0


def recipe(*settings: str) -> RecipeConfig:
    return load_config(RecipeConfig, find_recipe("lookup"), [*SMALL, *settings])


def children() -> dict[int, str]:
    """Processes of stepwell's that this one has started, directly or not, and their commands."""
    found, families = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            families[int(folder.name)] = int(stat[1])
            found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    mine = {os.getpid()}
    for _ in range(4):
        mine |= {process for process, parent in families.items() if parent in mine}
    helpers = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # Python's own, until this one ends
    return {
        process: command
        for process, command in found.items()
        if process in mine - {os.getpid()} and not any(name in command for name in helpers)
    }


def kill(what: str) -> None:
    """One process whose command has these words in it."""
    os.kill(next(process for process, command in children().items() if f"stepwell {what} " in command), signal.SIGKILL)


def consumed(pool: Path) -> list[tuple[str, int]]:
    """(group, leases that were acknowledged of it) of all groups that were trained on."""
    with closing(sqlite3.connect(pool)) as database:
        return database.execute(
            "SELECT groups.id, count(*) FROM deliveries JOIN groups ON groups.cursor = deliveries.unit_cursor "
            "JOIN leases ON leases.id = deliveries.lease_id WHERE leases.state = 'acknowledged' GROUP BY groups.id"
        ).fetchall()


def test_a_run_whose_players_and_server_are_killed_goes_on_to_its_end(tmp_path: Path) -> None:
    """Its environments print where its players tell, and read where they are told."""
    seen: list[UpdateInfo] = []
    before = children()

    def watch(update: UpdateInfo) -> None:
        seen.append(update)
        if update.policy_version in (1, 2):
            kill("worker")
        if update.policy_version == 3:
            kill("serve")

    noisy = f"environment.use={Path(__file__).with_name('noisy.py')}:NoisyLookupConfig"
    with training_run(
        recipe("trainer.updates=5", "rollout.workers=2", noisy), tmp_path, Progress(on_update=watch)
    ) as run:
        asyncio.run(run.train())
    assert [update.policy_version for update in seen] == [1, 2, 3, 4, 5]
    assert all(dict(update.metrics)["staleness_max"] == 0 for update in seen)
    assert all(dict(update.metrics)["ratio_error"] < 1e-3 for update in seen)  # what served had the weights that learn
    groups = consumed(tmp_path / POOL_FILE)
    assert len(groups) == 5 * 4
    assert {times for _, times in groups} == {1}
    assert children().keys() <= before.keys()


def test_a_run_that_samples_ahead_goes_on_when_it_is_killed_and_leaves_no_process_behind(tmp_path: Path) -> None:
    ahead, before = ("trainer.max_staleness=1", "trainer.updates=6"), children()
    with stepwell("train", "lookup", *SMALL, *ahead, "--folder", str(tmp_path / "run")) as dying:
        dying.wait_for("update    2")
        started = children().keys() - before.keys() - {dying.process.pid}
        assert len(started) >= 3  # a server and two players
        dying.kill()
        deadline = time.monotonic() + _PATIENCE
        while any(Path(f"/proc/{process}/cmdline").exists() for process in started):
            assert time.monotonic() < deadline, "a process of a run that was killed lives on"
            time.sleep(0.1)
    with stepwell("train", "--resume", str(tmp_path / "run")) as resumed:
        resumed.wait_for("done: weights")
        resumed.process.wait(_PATIENCE)
    with closing(SQLitePool.open(tmp_path / "run" / POOL_FILE, read_only=True)) as pool:
        updates = pool.updates("lookup")
    assert [update.policy_version for update in updates] == [1, 2, 3, 4, 5, 6]
    assert all(dict(update.metrics)["staleness_max"] <= 1 for update in updates)
    groups = consumed(tmp_path / "run" / POOL_FILE)
    assert len(groups) == 6 * 4
    assert {times for _, times in groups} == {1}


def test_siblings_are_played_in_another_process_too(tmp_path: Path) -> None:
    changes = ("algorithm.use=rtpo", "trainer.updates=3", "rollout.workers=1", "algorithm.trunks=2")
    with training_run(recipe(*changes), tmp_path) as run:
        updates = asyncio.run(run.train())
        lines = [line for _, line in run.served.pool.groups() if line.state == "ready"]
    assert len(updates) == 3
    assert {line.info.origin_index for line in lines} <= {0, 1, 2}
    assert len({line.info.origin_index for line in lines}) > 1


def test_a_worker_without_a_run_says_so(tmp_path: Path, command: Callable[..., Finished]) -> None:
    done = command("worker", "--run", str(tmp_path / "none"), "--gateway", "http://127.0.0.1:9", "--model", "m")
    assert done.code == 1
    assert "holds no run" in done.err


def test_an_engine_in_another_process_cannot_be_watched(tmp_path: Path) -> None:
    run = training_run(recipe("trainer.updates=1"), tmp_path, watch=lambda engine: engine)
    with pytest.raises(InvalidRequest, match="mode=inline"), run:
        pass
