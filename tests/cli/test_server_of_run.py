"""The server of a run that is killed where it hurts most: before it serves, and while it comes back."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from stepwell.cli.fleet.server import Server
from stepwell.cli.serving import free_port
from stepwell.cli.training import training_run
from stepwell.errors import EngineError
from tests.cli.test_local_mode import children, recipe


class Assassin(threading.Thread):
    """Kills the first servers that are begun, each before it can serve."""

    def __init__(self, victims: int) -> None:
        super().__init__(daemon=True)
        self.victims, self.killed = victims, set[int]()

    def run(self) -> None:
        while len(self.killed) < self.victims:
            for process, command in children().items():
                if "stepwell serve " in command and process not in self.killed:
                    os.kill(process, signal.SIGKILL)
                    self.killed.add(process)
            time.sleep(0.02)


def test_one_that_is_killed_before_it_ever_served_is_begun_again(tmp_path: Path) -> None:
    assassin = Assassin(victims=2)
    assassin.start()
    with training_run(recipe("trainer.updates=1", "rollout.workers=1"), tmp_path) as run:
        assassin.join(60)
        updates = asyncio.run(run.train())
    assert len(assassin.killed) == 2
    assert [update.policy_version for update in updates] == [1]


@pytest.mark.skipif(not os.environ.get("STEPWELL_KILLS"), reason="five servers, a minute: make test-kills")
def test_one_that_is_killed_again_while_it_comes_back_is_begun_again(tmp_path: Path) -> None:
    """It is looked after by the one thread that begins it, which must not wait for the dead."""
    with training_run(recipe("trainer.updates=2", "rollout.workers=1"), tmp_path) as run:
        assassin = Assassin(victims=3)
        assassin.start()  # the first of them serves
        updates = asyncio.run(run.train())
        assassin.join(60)
    assert len(assassin.killed) == 3
    assert [update.policy_version for update in updates] == [1, 2]


def test_one_that_cannot_be_begun_is_not_begun_again_and_the_log_is_named(tmp_path: Path) -> None:
    server = Server(tmp_path, str(tmp_path / "pool.sqlite"), free_port("127.0.0.1"))  # there is no run
    try:
        with pytest.raises(EngineError, match=r"died \(status 1\); see .*serve\.log"):
            server.wait()
    finally:
        server.close()
    assert "holds no run" in (tmp_path / "serve.log").read_text()
