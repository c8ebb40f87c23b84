"""`stepwell run` with an agent that nobody changed, its forks, and `stepwell show tree`, which draws them."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stepwell.gateway.app import create_app
from stepwell.pool.store import SQLitePool
from tests.cli.processes import Finished
from tests.environments.test_black_box import AGENT
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    engine = ScriptedEngine(tiny_renderer("line"), [f"reply{number}" for number in range(99)])
    with serving(create_app(engine, engine.renderer, pool)) as url:
        yield url
    pool.close()


@pytest.fixture
def agent(tmp_path: Path) -> tuple[str, ...]:
    """Options for an agent of three turns; it is worth 1 if its last answer has an even number."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "judge.py").write_text(
        "def reward(done):\n    return {'even': float(int(done.output.split()[-1].removeprefix('reply')) % 2 == 0)}\n"
    )
    (tmp_path / "tasks.jsonl").write_text('{"id": "one", "prompt": "hello"}\n{"id": "two", "prompt": "good day"}\n')
    command = f"{sys.executable} {tmp_path}/agent.py {{task}}"
    return ("--agent", command, "--task-file", str(tmp_path / "tasks.jsonl"), "--reward", f"{tmp_path}/judge.py:reward")


def test_an_agent_of_ones_own_plays_groups(
    command: Callable[..., Finished], gateway: str, agent: tuple[str, ...], tmp_path: Path
) -> None:
    done = command("run", "--gateway", gateway, *agent, "--tasks", "2", "--group-size", "2", "--channel", "mine")
    assert done.code == 0, done.err
    assert "4 trajectories" in done.out
    assert ["all", "4", "0"] in [line.split()[:3] for line in done.out.splitlines()]
    with closing(SQLitePool.open(tmp_path / "pool.sqlite", read_only=True)) as pool:
        lines = [line for _, line in pool.groups("mine")]
    assert sorted((line.info.task_id, line.state, line.complete) for line in lines) == [
        ("one", "ready", 2),
        ("two", "ready", 2),
    ]


def test_each_turn_of_it_is_taken_anew_and_drawn(
    command: Callable[..., Finished], gateway: str, agent: tuple[str, ...], tmp_path: Path
) -> None:
    done = command("run", "--gateway", gateway, *agent, "--tasks", "1", "--group-size", "2", "--fork")
    assert done.code == 0, done.err
    where = ("--pool", str(tmp_path / "pool.sqlite"))
    (facts,) = json.loads(command("show", "tree", "--json", *where).out)
    assert facts["task"] == "one"
    assert [turn["index"] for turn in facts["turns"]] == [0, 1, 2]
    for turn in facts["turns"]:
        assert [sibling["steps"] for sibling in turn["siblings"]] == [3 - turn["index"]] * 2
        assert sum(sibling["advantage"] for sibling in turn["siblings"]) == 0
    drawn = command("show", "tree", "one", *where).out
    assert drawn.count("trunk") == 1
    assert drawn.count("terminated") == 7
    assert "reply0" in drawn


@pytest.mark.parametrize(
    ("arguments", "what"),
    [(("show", "tree"), "nothing was forked yet"), (("show", "tree", "nobody"), "no trajectory 'nobody'")],
)
def test_there_may_be_nothing_to_draw(
    command: Callable[..., Finished], tmp_path: Path, arguments: tuple[str, ...], what: str
) -> None:
    SQLitePool.open(tmp_path / "empty.sqlite").close()
    done = command(*arguments, "--pool", str(tmp_path / "empty.sqlite"))
    assert done.code == 1
    assert what in done.err


def test_an_agent_needs_tasks(command: Callable[..., Finished]) -> None:
    done = command("run", "--agent", "echo")
    assert done.code == 1
    assert "--agent needs --task-file" in done.err
