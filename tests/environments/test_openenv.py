"""An environment behind a real OpenEnv server is played over its WebSocket."""

import json
from pathlib import Path

import pytest

pytest.importorskip("openenv", reason="needs: pip install openenv")

from stepwell.environments.openenv import OpenEnvConfig
from stepwell.errors import ConfigError, EnvironmentFailed, ForkRefused
from stepwell.rollout.env import TaskSet
from stepwell.rollout.episode import Episode
from tests.environments.laws import call, opened, play, say
from tests.environments.servers import free_port, openenv_url


def _tasks(**settings: object) -> TaskSet:
    return OpenEnvConfig.model_validate({"url": openenv_url(), "observation_field": "text", **settings}).build()


def test_an_episode_ends_where_the_server_says_done() -> None:
    first, second = play(_tasks(), "train-0", [call("act", by=1), call("act", by=20)])
    assert first.messages[0].content == "at 1"
    assert first.reward == 0.0
    assert second.terminated
    assert second.reward_parts == (("reward", 1.0),)


def test_the_action_is_a_tool_with_the_servers_own_fields() -> None:
    (tool,) = _tasks().make().tools
    assert tool.parameters["properties"] == {"by": {"type": "integer"}}
    assert tool.parameters["required"] == ["by"]


def test_tasks_and_seeds_decide_the_episode() -> None:
    tasks = _tasks()
    openings = {opened(tasks, f"train-{number}")[-1].content for number in range(12)}
    assert len(openings) > 1
    assert len({opened(tasks, "train-0", seed)[-1].content for seed in range(12)}) > 1


def test_rows_of_a_file_say_how_to_reset(tmp_path: Path) -> None:
    path = tmp_path / "walks.jsonl"
    path.write_text(json.dumps({"prompt": "Walk.", "reset": {"seed": 4}, "split": "train"}))
    assert opened(_tasks(tasks=str(path)), "row-0")[-1].content == "Walk.\n\nGo to 7."


def test_the_whole_observation_is_shown_as_json_if_no_field_is_named() -> None:
    shown = json.loads(opened(_tasks(observation_field=None), "train-0")[-1].content)
    assert shown["text"].startswith("Go to ")


def test_mistakes_are_told_and_counted() -> None:
    outcomes = play(_tasks(), "train-0", [call("act", by="far"), call("fly"), say("Hello?")])
    assert [outcome.invalid_calls for outcome in outcomes] == [1, 1, 0]
    assert "by must be integer" in outcomes[0].messages[0].content
    assert "Call the tool act" in outcomes[2].messages[0].content


def test_plain_text_becomes_a_field_and_what_the_server_refuses_is_told() -> None:
    tasks = _tasks(text_field="by", max_turns=2)
    assert tasks.make().tools == ()
    told, last = play(tasks, "train-0", [say("far"), say("2")])
    assert "does not take that: by" in told.messages[0].content
    assert last.truncated


def test_a_mistake_of_the_environment_is_its_failure() -> None:
    with pytest.raises(EnvironmentFailed, match="the bridge is broken"):
        play(_tasks(), "train-0", [call("act", by=99)])


async def test_a_replay_that_comes_to_another_state_is_refused() -> None:
    tasks = _tasks()
    episode = await Episode.begin(tasks, "train-0")
    await episode.step(call("act", by=1))
    boundary = await episode.boundary()
    await episode.close()
    changed = boundary.past[0].__class__(call("act", by=2), boundary.past[0].digest)
    with pytest.raises(ForkRefused, match="did not do the same again"):
        await Episode.fork(tasks, boundary.__class__("train-0", 0, boundary.opening, (changed,), None))


def test_a_server_that_is_not_there_and_wrong_settings_are_named() -> None:
    with pytest.raises(EnvironmentFailed, match="does not tell what actions are like"):
        _tasks(url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConfigError, match="actions have no field 'text'; they have by"):
        _tasks(text_field="text")
