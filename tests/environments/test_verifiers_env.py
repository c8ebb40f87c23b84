"""Environments of the library `verifiers` in their older form are played by its own loop, unchanged."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("verifiers", reason="needs: pip install 'verifiers>=0.2,<0.3'")
import verifiers

from stepwell.environments.verifiers_env import VerifiersConfig
from stepwell.errors import ConfigError, EnvironmentFailed, NotFound
from stepwell.rollout.env import TaskSet
from tests.environments.laws import call, opened, play, say

pytestmark = pytest.mark.skipif(
    not hasattr(verifiers, "MultiTurnEnv"), reason="needs: pip install 'verifiers>=0.2,<0.3'"
)
FILE = Path(__file__).with_name("verifiers_legacy.py")


def _tasks(function: str, **arguments: object) -> TaskSet:
    return VerifiersConfig(environment=f"{FILE}:{function}", arguments=arguments).build()


def test_an_episode_opens_with_the_systems_and_the_users_words() -> None:
    opening = opened(_tasks("load_guessing"), "train-3")
    assert [(message.role, message.content) for message in opening] == [
        ("system", "Say a number."),
        ("user", "Guess 3."),
    ]


def test_the_loop_answers_and_the_rubric_rewards() -> None:
    first, second, last = play(_tasks("load_guessing"), "train-3", [say("1"), say("4"), say("3")])
    assert [first.messages[0].content, second.messages[0].content] == ["higher", "lower"]
    assert last.terminated
    assert last.reward == pytest.approx(1.0 + 0.5 / 5)


def test_turns_that_run_out_cut_the_episode_short() -> None:
    last = play(_tasks("load_guessing"), "train-3", [say("0"), say("0"), say("0")])[-1]
    assert last.truncated
    assert last.reward == pytest.approx(0.5 / 5)


def test_the_one_answer_of_a_single_turn_is_an_end_of_its_own() -> None:
    (last,) = play(_tasks("load_single"), "train-3", [say("3")])
    assert last.terminated
    assert last.reward == 1.0


def test_tools_are_offered_and_called_and_mistakes_counted() -> None:
    tasks = _tasks("load_doubling")
    outcomes = play(tasks, "train-4", [call("double", x=2), call("triple", x=2), say("4")])
    assert outcomes[0].messages[0].content == "4"
    assert [outcome.invalid_calls for outcome in outcomes] == [0, 1, 0]
    assert outcomes[-1].reward == 1.0


def test_without_a_set_for_evaluation_a_fifth_is_held_out() -> None:
    tasks = _tasks("load_guessing", evaluated=False)
    assert len(tasks.tasks("train")) + len(tasks.tasks("test")) == 40
    assert len(_tasks("load_guessing").tasks("test")) == 10


def test_an_environment_that_fails_is_its_own_failure() -> None:
    with pytest.raises(EnvironmentFailed, match="out of order"):
        play(_tasks("load_guessing"), "train-3", [say("break")])


async def test_an_episode_that_is_left_leaves_nothing_running() -> None:
    environment = _tasks("load_guessing").make()
    before = asyncio.all_tasks()
    await environment.reset("train-0")
    await environment.close()
    assert asyncio.all_tasks() == before


def test_what_is_no_environment_and_no_task_is_named() -> None:
    with pytest.raises(ConfigError, match="gave a int"):
        _tasks("load_nothing")
    with pytest.raises(ConfigError, match="cannot load no-such-environment"):
        VerifiersConfig(environment="no-such-environment").build()
    with pytest.raises(NotFound):
        opened(_tasks("load_guessing"), "train-999")
