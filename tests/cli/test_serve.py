"""`stepwell serve`: what a client was told is stored, however the server ends; and what reads the pool afterwards."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from stepwell.pool.store import SQLitePool
from stepwell.types import Step
from tests.cli.processes import Finished, Stepwell, stepwell

CLIENTS = 4
Command = Callable[..., Finished]


def base_url(server: Stepwell) -> str:
    return server.wait_for("base URL").split()[2].removesuffix("/v1")


def call(url: str, trajectory: str) -> str:
    """One call with the real SDK; gives the id of the step that it was told."""
    with openai.OpenAI(base_url=f"{url}/t/{trajectory}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        ask = {"role": "user", "content": "find ab"}
        raw = client.chat.completions.with_raw_response.create(model="lookup", messages=[ask], max_tokens=6)
    return raw.headers["x-stepwell-step"]


class Caller(threading.Thread):
    """Calls in one trajectory, again and again, until the server is gone."""

    def __init__(self, url: str, trajectory: str, enough: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self.url, self.trajectory, self.enough = url, trajectory, enough
        self.told: list[str] = []

    def run(self) -> None:
        try:
            while True:
                self.told.append(call(self.url, self.trajectory))
                if len(self.told) == 5:
                    self.enough.wait(60)
        except openai.APIConnectionError:
            pass


def stored(pool: Path) -> dict[str, list[Step]]:
    """The steps of each trajectory."""
    opened = SQLitePool.open(pool, read_only=True)
    trajectories = [opened.trajectory(summary.info.id) for _, summary in opened.trajectories(limit=1000)]
    opened.close()
    return {trajectory.info.id: list(trajectory.steps) for trajectory in trajectories}


def test_what_was_acknowledged_outlives_a_kill_and_calls_go_on_behind_it(tmp_path: Path, command: Command) -> None:
    pool = tmp_path / "pool.sqlite"
    serve = ("serve", "--model", "lookup", "--tool-format", "line", "--port", "0", "--pool", str(pool))
    with stepwell(*serve) as server:
        told = _call_until_killed(server)
    before = stored(pool)
    for trajectory, steps in told.items():
        assert set(steps) <= {step.id for step in before[trajectory]}
        assert [step.index for step in before[trajectory]] == list(range(len(before[trajectory])))
    with stepwell(*serve) as server:
        url = base_url(server)
        new = {trajectory: call(url, trajectory) for trajectory in told}
        _run_through(command, url)
        assert server.interrupt() == 0
    after = stored(pool)
    for trajectory, step_id in new.items():
        *old, last = after[trajectory]
        assert (old, last.id, last.index) == (before[trajectory], step_id, len(before[trajectory]))
    _look(command, pool)


def _call_until_killed(server: Stepwell) -> dict[str, list[str]]:
    """Kill the server while everybody is calling; gives the ids of the steps that each caller was told."""
    url = base_url(server)
    enough = threading.Barrier(CLIENTS + 1)
    callers = [Caller(url, f"caller-{number}", enough) for number in range(CLIENTS)]
    for caller in callers:
        caller.start()
    enough.wait(60)
    server.kill()
    for caller in callers:
        caller.join(60)
    return {caller.trajectory: caller.told for caller in callers}


def _run_through(command: Command, url: str) -> None:
    done = command("run", "--gateway", url, "--environment", "lookup", "--tasks", "2", "--group-size", "2")
    assert done.code == 0
    assert "4 trajectories, mean reward" in done.out


def _look(command: Command, pool: Path) -> None:
    """`stepwell pool` shows what the rollout left."""
    counts = json.loads(command("pool", "stats", "--pool", str(pool), "--json").out)
    assert (counts["groups"], counts["groups_ready"]) == (2, 2)
    listed = json.loads(command("pool", "ls", "--pool", str(pool), "--json").out)
    sources = defaultdict(list)
    for line in listed:
        sources[line["info"]["source"]].append(line)
    assert len(sources["gateway"]) == CLIENTS
    assert len(sources["rollout"]) == 4
    assert all(line["status"] in ("terminated", "truncated") for line in sources["rollout"])
    shown = json.loads(command("pool", "show", listed[0]["info"]["id"], "--pool", str(pool), "--json").out)
    assert len(shown["steps"]) == listed[0]["steps"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1"])
def test_only_loopback_is_served(command: Command, host: str) -> None:
    done = command("serve", "--model", "lookup", "--host", host)
    assert done.code == 1
    assert f"refusing to listen on {host}" in done.err
