"""Agents that nobody changes: real processes and services against a real gateway, and forks of them."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi import FastAPI
from pydantic import ValidationError

from stepwell.algorithms.base import Siblings
from stepwell.environments.black_box import BlackBoxConfig
from stepwell.errors import ConfigError, InvalidRecord, InvalidRequest
from stepwell.gateway.app import create_app
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.rollout.blackbox import Place
from stepwell.rollout.group import Collector
from stepwell.rollout.run import Ending, RolloutConfig, Start
from stepwell.rollout.siblings import SiblingCollector
from stepwell.types import TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving

AGENT = textwrap.dedent(
    """
    import os, sys
    from openai import OpenAI

    client, messages = OpenAI(max_retries=0), []
    for turn in range(3):
        messages.append({"role": "user", "content": f"{sys.argv[1]} {turn}"})
        answer = client.chat.completions.create(model=os.environ["STEPWELL_MODEL"], messages=messages)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        print(answer.choices[0].message.content)
    """
)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    yield pool
    pool.close()


@pytest.fixture
def place(pool: SQLitePool) -> Iterator[Place]:
    engine = ScriptedEngine(tiny_renderer("line"), ["a", "b", "c", *"uvwxyz"])
    with ExitStack() as stack:
        url = stack.enter_context(serving(create_app(engine, engine.renderer, pool)))
        yield Place(gateway_url=url, model="tiny", log=pool, read=pool.trajectory)


@pytest.fixture
def written(tmp_path: Path):
    """Settings for an agent of three turns; each keyword is a file's text or a setting."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "prompt": "it\'s; $HOME"}\n{"prompt": "two", "split": "test"}\n')

    def make(**settings) -> BlackBoxConfig:
        agent = (
            {}
            if {"function", "service"} & settings.keys()
            else {"command": f"{sys.executable} {tmp_path}/agent.py {{task}}"}
        )
        return BlackBoxConfig(**{"tasks": tmp_path / "tasks.jsonl", **agent, **settings})

    return make


def gone(pid: str) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().split()[2] == "Z"


async def play(config: BlackBoxConfig, place: Place, pool: SQLitePool, task: str = "t") -> tuple[Ending, object]:
    info = TrajectoryInfo(task_id=task)
    ending = await config.build().player(place).play(info, Start())
    return ending, pool.trajectory(info.id)


async def test_a_command_finds_the_gateway_and_its_task_and_is_rewarded_for_its_exit_code(written, place, pool) -> None:
    ending, stored = await play(written(), place, pool)
    assert (stored.status, stored.reward, dict(stored.reward_parts)) == ("terminated", 1.0, {"exit_code": 1.0})
    assert (ending.turns, ending.reward) == (3, 1.0)
    assert [step.index for step in stored.steps] == [0, 1, 2]
    assert json.loads(stored.steps[0].request)["messages"][0]["content"] == "it's; $HOME 0"


async def test_a_command_that_fails_is_worth_nothing_and_says_why(written, place, pool, tmp_path) -> None:
    (tmp_path / "agent.py").write_text(AGENT + "\nsys.exit(3)\n")
    _, stored = await play(written(), place, pool)
    assert (stored.status, stored.reward, stored.why) == ("terminated", 0.0, "exit code 3")


async def test_the_reward_may_be_a_file_of_the_working_directory(written, place, pool, tmp_path) -> None:
    (tmp_path / "agent.py").write_text(AGENT + "\nopen('score.txt', 'w').write(' 0.25\\n')\n")
    _, stored = await play(written(reward="file:score.txt"), place, pool)
    assert dict(stored.reward_parts) == {"file": 0.25}


async def test_a_reward_that_is_not_there_fails_the_trajectory_and_is_no_zero(written, place, pool) -> None:
    _, stored = await play(written(reward="file:score.txt"), place, pool)
    assert (stored.status, stored.reward) == ("failed", None)
    assert stored.why.startswith("EnvironmentFailed: score.txt holds no reward")


async def test_the_reward_may_be_a_function_of_all_that_is_left(written, place, pool, tmp_path) -> None:
    (tmp_path / "judge.py").write_text(
        "def reward(done):\n"
        "    assert done.task.fields['prompt'] == done.task.prompt\n"
        "    return {'steps': len(done.trajectory.steps), 'said': float(done.output == 'a\\nb\\nc\\n')}\n"
    )
    _, stored = await play(written(reward=f"{tmp_path}/judge.py:reward"), place, pool)
    assert dict(stored.reward_parts) == {"steps": 3.0, "said": 1.0}


async def test_files_are_copied_into_each_working_directory(written, place, pool, tmp_path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "score.txt").write_text("0.5")
    _, stored = await play(written(reward="file:score.txt", files=tmp_path / "files"), place, pool)
    assert stored.reward == 0.5


async def test_an_endless_agent_is_stopped_with_all_it_started_truncated_and_rewarded_for_what_it_left(
    written, place, pool, tmp_path
) -> None:
    endless = "\nimport subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
    endless += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\ntime.sleep(600)\n"
    (tmp_path / "agent.py").write_text(AGENT + endless)
    ending, stored = await play(written(timeout=8.0), place, pool)
    assert (stored.status, stored.why) == ("truncated", "the agent was stopped after 8.0 s")
    assert ending.turns == 3
    assert gone((tmp_path / "pid").read_text())


async def test_output_without_end_and_without_form_is_cut_and_kept_as_text(written, place, pool, tmp_path) -> None:
    drown = "\nsys.stdout.flush()\nfor _ in range(300):\n    os.write(1, b'\\xff' * 100_000)\nos.write(1, b'the end')\n"
    (tmp_path / "agent.py").write_text(AGENT + drown)
    (tmp_path / "judge.py").write_text(
        "def reward(done):\n    return float(len(done.output) == 65536 and done.output.endswith('the end'))\n"
    )
    _, stored = await play(written(reward=f"{tmp_path}/judge.py:reward"), place, pool)
    assert stored.reward == 1.0


async def test_an_agent_that_never_called_has_failed(written, place, pool) -> None:
    ending, stored = await play(written(command="echo hello"), place, pool)
    assert (stored.status, stored.reward, ending.retry) == ("failed", None, False)
    assert "the agent made no call that the gateway recorded; it ended with 0: hello" in stored.why


async def test_a_function_is_an_agent_too(written, place, pool, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from openai import AsyncOpenAI\n"
        "async def solve(call):\n"
        "    async with AsyncOpenAI(base_url=call.url, api_key=call.key) as client:\n"
        "        messages = [{'role': 'user', 'content': call.task.prompt}]\n"
        "        answer = await client.chat.completions.create(model=call.model, messages=messages)\n"
        "    return {'said': float(answer.choices[0].message.content == 'a')}\n"
    )
    ending, stored = await play(written(function=f"{tmp_path}/mine.py:solve", reward="result"), place, pool)
    assert (dict(stored.reward_parts), ending.turns) == ({"said": 1.0}, 1)


async def test_a_service_is_an_agent_too(written, place, pool) -> None:
    app = FastAPI()

    @app.post("/solve")
    def solve(asked: dict) -> dict:
        import openai  # noqa: PLC0415

        client = openai.OpenAI(base_url=asked["base_url"], api_key=asked["api_key"])
        client.chat.completions.create(model=asked["model"], messages=[{"role": "user", "content": asked["task"]}])
        return {"reward": 0.75}

    with serving(app) as url:
        _, stored = await play(written(service=f"{url}/solve", reward="result"), place, pool)
        assert stored.reward == 0.75
        _, stored = await play(written(service=f"{url}/nowhere", reward="result"), place, pool)
        assert (stored.status, stored.reward) == ("failed", None)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_in_a_cage_an_agent_reaches_the_gateway_and_writes_nowhere_else(written, place, pool, tmp_path) -> None:
    probe = f"\ntry:\n    open({str(tmp_path / 'outside')!r}, 'w')\nexcept OSError:\n    open('kept', 'w').write('1')\n"
    probe += f"assert not os.path.exists({str(Path(__file__).parents[2] / 'pyproject.toml')!r})\n"
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "agent.py").write_text(AGENT + probe)
    config = written(
        command=f"{sys.executable} agent.py {{task}}",
        sandbox="bubblewrap",
        files=tmp_path / "files",
        reward="file:kept",
    )
    _, stored = await play(config, place, pool)
    assert (stored.status, stored.reward) == ("terminated", 1.0), stored.why
    assert not (tmp_path / "outside").exists()


async def test_siblings_of_an_unchanged_agent_share_its_past_and_differ_from_the_fork_on(written, place, pool) -> None:
    player, settings = written().build().player(place), RolloutConfig(group_size=2)
    collector = SiblingCollector(Collector(player, pool, settings), Siblings())
    assert await collector.collect(iter(["t"]), 1) == 1
    (group,) = pool.lease(LeaseSpec(consumer="trainer", unit="siblings", limit=9)).groups
    trunk = pool.trajectory(group.info.origin_id)
    assert (group.info.origin_index, len(group.trajectories)) == (2, 2)
    for sibling in group.trajectories:
        (step,) = sibling.steps
        assert step.prompt_ids.tolist() == trunk.steps[2].prompt_ids.tolist()
        assert sibling.complete
    assert len({t.steps[0].response for t in (trunk, *group.trajectories)}) == 3


@pytest.mark.parametrize(
    "settings", [{"function": "x:y", "service": "http://x"}, {"service": "http://x", "sandbox": "bubblewrap"}]
)
def test_agents_that_are_not_said_clearly_are_refused(written, settings: dict) -> None:
    with pytest.raises(ValidationError):
        written(**settings)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "line 2 has no text `prompt`"),
        ('{"prompt": 1}', "line 2 has no text `prompt`"),
        ('{"prompt": "x", "split": "dev"}', "line 2 has the split 'dev'"),
        ('{"prompt": "x", "id": "t"}', "two tasks with the id 't'"),
    ],
)
def test_a_broken_line_of_tasks_is_named(written, tmp_path: Path, line: str, what: str) -> None:
    (tmp_path / "tasks.jsonl").write_text(f'{{"id": "t", "prompt": "one"}}\n{line}\n')
    with pytest.raises(InvalidRecord, match=what):
        written().build()


def test_tasks_and_functions_that_are_not_there_are_errors_of_the_settings(written, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the tasks"):
        written(tasks=tmp_path / "none.jsonl").build()
    with pytest.raises(ConfigError, match="names nothing"):
        written(reward="json:nothing", command=None, function="json:dumps").build()


def test_the_splits_are_what_the_tasks_say(written) -> None:
    tasks = written().build()
    assert (tasks.tasks("train"), tasks.tasks("test")) == (["t"], ["task-2"])
    with pytest.raises(InvalidRequest, match="no split 'dev'"):
        tasks.tasks("dev")
