"""An environment of Python functions: somebody's tools, tasks and reward."""

import json
from pathlib import Path

import pytest

from stepwell.environments.functions import Functions, FunctionsConfig
from stepwell.errors import ConfigError, EnvironmentFailed, InvalidRecord, InvalidRequest, NotFound
from stepwell.rendering.messages import Message
from stepwell.rollout.episode import Episode
from tests.environments.laws import call, opened, play, say, shop_file

PLAIN = '''
"""Tools as functions."""
from stepwell.environments.functions import Finished


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def submit(answer: str) -> None:
    """Finish."""
    raise Finished(answer)


def broken() -> None:
    """Always fails."""
    raise SystemExit("out of order")


TOOLS = [add, submit, broken]
TASKS = [{"prompt": "What is 2 + 2?", "gold": "4", "id": "sum"}, {"prompt": "And 3 + 3?", "gold": "6"}]


async def reward(played):
    return played.answer == played.task["gold"]


def seen(played):
    return {"calls": len(played.calls), "cut": played.truncated, "result": float(played.calls[0].result)}


def fails(played):
    return 1 / 0


def wrong(played):
    return "good"
'''


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.py"
    path.write_text(PLAIN, encoding="utf-8")
    return path


def made(path: Path, reward: str = "reward", tools: str = "TOOLS", **settings: object) -> Functions:
    names = {"tools": f"{path}:{tools}", "reward": f"{path}:{reward}", "tasks": f"{path}:TASKS"}
    return Functions(FunctionsConfig.model_validate({**names, **settings}))


def test_tools_are_called_with_what_the_policy_writes(plain: Path) -> None:
    first, last = play(made(plain), "sum", [call("add", a=2, b=2), say("4")])
    assert [message.content for message in first.messages] == ["4"]
    assert (last.terminated, last.reward_parts) == (True, (("reward", 1.0),))


def test_a_tool_can_end_the_episode_with_an_answer(plain: Path) -> None:
    (last,) = play(made(plain), "sum", [call("submit", answer="5")])
    assert (last.terminated, last.messages, last.reward_parts) == (True, (), (("reward", 0.0),))


def test_the_reward_sees_the_calls_and_whether_the_turns_ran_out(plain: Path) -> None:
    script = [call("add", a=2, b=2), call("add", a="2")]
    last = play(made(plain, "seen", max_turns=2), "sum", script)[-1]
    assert (last.truncated, last.invalid_calls) == (True, 1)
    assert last.reward_parts == (("calls", 1.0), ("cut", 1.0), ("result", 4.0))


@pytest.mark.parametrize(
    ("action", "text", "invalid"),
    [
        (call("subtract", a=1), "Error: there is no tool 'subtract'; use add, submit, broken.", 1),
        (call("add", a=1), "Error: add does not take that. b: Field required", 1),
        (call("broken"), "Error: SystemExit: out of order", 0),
    ],
)
def test_a_wrong_call_and_a_tool_that_raises_are_answered(
    plain: Path, action: Message, text: str, invalid: int
) -> None:
    (outcome,) = play(made(plain), "sum", [action])
    assert ([message.content for message in outcome.messages], outcome.invalid_calls) == ([text], invalid)


@pytest.mark.parametrize(("reward", "why"), [("fails", "ZeroDivisionError"), ("wrong", "gave 'good'")])
def test_a_reward_that_fails_or_is_no_number_is_the_environments_fault(plain: Path, reward: str, why: str) -> None:
    with pytest.raises(EnvironmentFailed, match=why):
        play(made(plain, reward), "sum", [say("4")])


def test_each_episode_has_an_object_of_its_own(tmp_path: Path) -> None:
    path = shop_file(tmp_path)
    tasks = made(path, tools="Shop", system="You shop.")
    task = tasks.tasks("train")[0]
    assert [message.role for message in opened(tasks, task)] == ["system", "user"]
    for _ in range(2):
        added, total, last = play(tasks, task, [call("add", item="x", count=2), call("total"), say("2")], seed=100)
        assert added.messages[0].content == "2 in the basket"
        assert int(total.messages[0].content) > 200
        assert last.reward_parts == (("right", 1.0), ("calls", pytest.approx(0.2)))
    assert tasks.task_type(task) == "fruit"


async def test_a_class_is_forked_by_copying_its_object(tmp_path: Path) -> None:
    tasks = made(shop_file(tmp_path), tools="Shop", fork="copy")
    episode = await Episode.begin(tasks, tasks.tasks("train")[0])
    await episode.step(call("add", item="x"))
    boundary = await episode.boundary()
    await episode.step(call("add", item="y"))
    fork = await Episode.fork(tasks, boundary)
    assert (await fork.step(call("add", item="z"))).messages[0].content == "2 in the basket"
    assert (await episode.step(call("add", item="y"))).messages[0].content == "3 in the basket"


def test_a_class_that_cannot_begin_is_the_environments_fault(tmp_path: Path) -> None:
    path = shop_file(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Buy.", "id": "a"}\n', encoding="utf-8")
    with pytest.raises(EnvironmentFailed, match="cannot begin: KeyError: 'price'"):
        play(made(path, tools="Shop", tasks=str(rows)), "a", [say("1")])


def test_tasks_come_from_a_file_with_ids_and_splits_of_their_own(plain: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "p", "id": f"{split}-{n}", "split": split} for split in ("train", "test") for n in range(2)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    tasks = made(plain, tasks=str(path))
    assert (tasks.tasks("train"), tasks.tasks("test")) == (["train-0", "train-1"], ["test-0", "test-1"])
    with pytest.raises(InvalidRequest, match="train or test"):
        tasks.tasks("dev")
    with pytest.raises(NotFound, match="no task"):
        opened(tasks, "train-9")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"id": "b"}', "line 2: `prompt` is missing"),
        ('{"prompt": "a"}\n{"prompt": ', "line 2: not JSON"),
        ('{"prompt": "a", "split": "dev"}', "line 1: `split` must be train or test"),
        ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "line 2: `id` 'x' occurs twice"),
        ("", "holds no tasks"),
    ],
)
def test_broken_rows_are_named_by_their_line(plain: Path, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRecord, match=message):
        made(plain, tasks=str(path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tools": "NONE"}, "names nothing"),
        ({"tools": "add"}, "must be a list of functions, or a class"),
        ({"reward": "TASKS"}, "is not a function of a Played"),
    ],
)
def test_names_that_lead_nowhere_are_refused(plain: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(plain, **settings)


def test_a_list_of_tasks_must_hold_dictionaries(plain: Path) -> None:
    with pytest.raises(ConfigError, match="must be a list of dictionaries"):
        made(plain, tasks=f"{plain}:TOOLS")


async def test_no_step_without_a_running_episode(plain: Path) -> None:
    with pytest.raises(InvalidRequest, match="reset"):
        await made(plain).make().step(say("4"))
