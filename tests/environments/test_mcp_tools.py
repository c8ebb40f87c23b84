"""Tools of a real MCP server, over stdin and stdout and over HTTP; what a server may do wrong."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs: pip install 'stepwell[mcp]'")

from stepwell.environments.mcp_tools import MCPConfig
from stepwell.errors import EnvironmentFailed, InvalidRecord, NotFound
from stepwell.rendering.messages import Message
from stepwell.rollout.env import Outcome, TaskSet
from tests.environments.laws import answers_file, call, play, say
from tests.environments.servers import MCP_SERVER, free_port, mcp_url

STDIO = (sys.executable, str(MCP_SERVER))


def _tasks(folder: Path, **settings: object) -> TaskSet:
    return MCPConfig.model_validate({"tasks": str(answers_file(folder)), **settings}).build()


def _first(tasks: TaskSet, script: Sequence[Message]) -> list[Outcome]:
    return play(tasks, "row-0", script)


@pytest.mark.parametrize("how", ["stdio", "http"])
def test_tools_are_offered_called_and_rewarded(how: str, tmp_path: Path) -> None:
    where = {"command": STDIO} if how == "stdio" else {"url": mcp_url()}
    told, mistaken, ended = _first(
        _tasks(tmp_path, **where), [call("capital", land="Quell"), call("capital", land="Nowhere"), say("Marn.")]
    )
    assert told.messages[0].content == "Marn"
    assert mistaken.messages[0].content.startswith("Error: ")
    assert mistaken.invalid_calls == 0
    assert ended.reward_parts == (("answer", 1.0),)


async def test_the_servers_schemas_become_ours_without_titles(tmp_path: Path) -> None:
    environment = _tasks(tmp_path, url=mcp_url(), only=("repeat", "capital")).make()
    await environment.reset("row-0")
    assert [tool.name for tool in environment.tools] == ["repeat", "capital"]
    assert environment.tools[1].description == "Name the capital of a land."
    assert environment.tools[1].parameters == {
        "type": "object",
        "properties": {"land": {"type": "string"}},
        "required": ["land"],
    }
    await environment.close()


def test_mistakes_are_told_and_counted_before_the_server_sees_them(tmp_path: Path) -> None:
    script = [call("capital"), call("capital", land=3), call("fly")]
    outcomes = _first(_tasks(tmp_path, url=mcp_url()), script)
    assert [outcome.invalid_calls for outcome in outcomes] == [1, 1, 1]
    assert "land is missing" in outcomes[0].messages[0].content


def test_a_long_answer_is_cut(tmp_path: Path) -> None:
    (outcome,) = _first(_tasks(tmp_path, url=mcp_url(), max_characters=6), [call("repeat", text="ab", times=100_000)])
    assert outcome.messages[0].content == "ababab\n[199994 more characters]"


@pytest.mark.parametrize(
    ("tool", "complaint"), [("die", "failed at die|ended while"), ("sleep", "sleep of .* took over 3")]
)
def test_a_server_that_dies_or_hangs_is_the_environments_failure(tool: str, complaint: str, tmp_path: Path) -> None:
    tasks = _tasks(tmp_path, command=STDIO, timeout=3.0)
    with pytest.raises(EnvironmentFailed, match=complaint):
        _first(tasks, [call(tool)])


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (("/no/such/program",), "FileNotFoundError"),
        ((sys.executable, "-c", "raise SystemExit('out of order')"), "it said: out of order"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "did not begin within 1"),
    ],
)
def test_a_server_that_does_not_begin_is_the_environments_failure(
    command: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    timeout = 1.0 if "sleep" in command[-1] else 20.0
    with pytest.raises(EnvironmentFailed, match=complaint):
        _first(_tasks(tmp_path, command=command, timeout=timeout), [])


def test_a_url_where_nobody_listens_is_the_environments_failure(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="cannot be used as an MCP server"):
        _first(_tasks(tmp_path, url=f"http://127.0.0.1:{free_port()}/mcp"), [])


def test_the_process_of_a_server_ends_with_its_episode(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    runs = f"import atexit, pathlib, runpy; atexit.register(pathlib.Path({str(mark)!r}).touch); "
    code = f"{runs}import sys; sys.argv = ['server']; runpy.run_path({str(MCP_SERVER)!r}, run_name='__main__')"
    _first(_tasks(tmp_path, command=(sys.executable, "-c", code)), [call("capital", land="Quell")])
    assert mark.exists()


async def test_many_episodes_at_once_keep_apart_and_leave_nothing_running(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path, url=mcp_url(), read_only=True)

    async def one(number: int) -> str:
        environment = tasks.make()
        await environment.reset("row-0")
        outcome = await environment.step(call("repeat", text=str(number)))
        await environment.close()
        return outcome.messages[0].content

    assert await asyncio.gather(*map(one, range(20))) == [str(number) for number in range(20)]
    assert {task for task in asyncio.all_tasks() if task.get_name().startswith("mcp ")} == set()


def test_a_reward_function_sees_the_calls(tmp_path: Path) -> None:
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def reward(played):\n    return {'calls': len(played.calls), 'late': played.truncated}\n")
    tasks = _tasks(tmp_path, url=mcp_url(), reward=f"{rewards}:reward", max_turns=2)
    outcomes = _first(tasks, [call("capital", land="Quell"), call("fly")])
    assert outcomes[-1].truncated
    assert outcomes[-1].reward_parts == (("calls", 1.0), ("late", 1.0))


def test_mistakes_in_the_settings_are_named(tmp_path: Path) -> None:
    for settings, complaint in (
        ({}, "either `command` or `url`"),
        ({"command": STDIO, "url": "http://127.0.0.1/mcp"}, "either `command` or `url`"),
        ({"url": "http://127.0.0.1/mcp", "variables": {"A": "b"}}, "are for a `command`"),
    ):
        with pytest.raises(ValueError, match=complaint):
            _tasks(tmp_path, **settings)
    path = tmp_path / "without.jsonl"
    path.write_text('{"prompt": "What?"}\n')
    with pytest.raises(InvalidRecord, match="row-0: `answer` is missing"):
        MCPConfig(url="http://127.0.0.1/mcp", tasks=str(path)).build()
    with pytest.raises(NotFound, match="the server has no tool 'fly'"):
        _first(_tasks(tmp_path, url=mcp_url(), only=("fly",)), [])
