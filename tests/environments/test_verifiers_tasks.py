"""Task sets of the library `verifiers` in its present form are scored by their own rewards."""

from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1", reason="needs: pip install 'verifiers>=0.4'")

import verifiers

from stepwell.environments.verifiers_tasks import VerifiersTasksConfig
from stepwell.errors import ConfigError, EnvironmentFailed
from stepwell.rollout.env import TaskSet
from tests.environments.laws import call, opened, play, say

pytestmark = pytest.mark.skipif(hasattr(verifiers, "MultiTurnEnv"), reason="needs: pip install 'verifiers>=0.4'")
FILE = Path(__file__).with_name("verifiers_current.py")


def _tasks(name: str = "Sums") -> TaskSet:
    return VerifiersTasksConfig(taskset=f"{FILE}:{name}", most=50).build()


def test_a_set_without_end_is_read_up_to_a_limit_and_split() -> None:
    tasks = _tasks()
    assert len(tasks.tasks("train")) + len(tasks.tasks("test")) == 50
    assert 2 < len(tasks.tasks("test")) < 25


def test_the_prompt_opens_and_the_rewards_score_the_answer() -> None:
    tasks = _tasks()
    shown = [(message.role, message.content) for message in opened(tasks, "task-4")]
    assert shown == [("system", "Say a number."), ("user", "4 + 1 = ?")]
    (right,) = play(tasks, "task-4", [say("5")])
    (wrong,) = play(tasks, "task-4", [say("I have no idea.")])
    assert right.terminated
    assert dict(right.reward_parts) == {"right": 1.0, "short": 0.5}
    assert dict(wrong.reward_parts) == {"right": 0.0, "short": 0.0}


def test_a_call_where_there_are_no_tools_is_invalid() -> None:
    (outcome,) = play(_tasks(), "task-4", [call("add", a=4)])
    assert outcome.terminated
    assert outcome.invalid_calls == 1


def test_a_reward_that_fails_is_the_environments_failure() -> None:
    with pytest.raises(EnvironmentFailed, match="out of order"):
        play(_tasks(), "task-4", [say("break")])


def test_what_needs_more_than_a_conversation_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="task-0: it needs a container; run it as a black-box agent"):
        _tasks("make_boxed")
    with pytest.raises(ConfigError, match=r"gave a int, not a verifiers\.v1\.Taskset"):
        _tasks("make_nothing")
