"""AgentDojo by its own package: reference solutions score, idleness does not, and mistakes are told."""

import json
from typing import Any

import pytest

pytest.importorskip("agentdojo", reason="needs: pip install 'stepwell[agentdojo]'")

from stepwell.environments.agentdojo import AgentDojo, AgentDojoConfig
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message, ToolCall
from tests.environments.laws import call, play, say


@pytest.fixture(scope="module")
def tasks() -> AgentDojo:
    return AgentDojo(AgentDojoConfig(max_turns=40))


def _all(tasks: AgentDojo) -> list[str]:
    return [*tasks.tasks("train"), *tasks.tasks("test")]


def _solution(tasks: AgentDojo, task_id: str) -> list[Message]:
    """The reference solution of the package, one call a message, and its answer."""
    suite_name, _, name = task_id.partition("/")
    world: Any = tasks._worlds[suite_name]
    task = world.suite.user_tasks[name]
    before = task.init_environment(world.start.model_copy(deep=True))
    calls = task.ground_truth(before)
    made = [
        ToolCall(id=str(number), name=gold.function, arguments=json.dumps(dict(gold.args), default=str))
        for number, gold in enumerate(calls)
    ]
    messages = [Message(role="assistant", tool_calls=(one,)) for one in made]
    return [*messages, say(task.GROUND_TRUTH_OUTPUT)]


def test_four_suites_have_92_tasks_with_a_fifth_held_out(tasks: AgentDojo) -> None:
    kinds = [tasks.task_type(task_id) for task_id in _all(tasks)]
    assert {kind: kinds.count(kind) for kind in kinds} == {"workspace": 40, "travel": 20, "banking": 11, "slack": 21}
    assert 10 < len(tasks.tasks("test")) < 25


def test_every_reference_solution_solves_its_task_without_an_invalid_call(tasks: AgentDojo) -> None:
    for task_id in _all(tasks):
        outcomes = play(tasks, task_id, _solution(tasks, task_id))
        assert outcomes[-1].reward_parts == (("solved", 1.0),), task_id
        assert sum(outcome.invalid_calls for outcome in outcomes) == 0, task_id


def test_doing_nothing_solves_no_task(tasks: AgentDojo) -> None:
    for task_id in _all(tasks):
        (outcome,) = play(tasks, task_id, [say("")])
        assert outcome.terminated
        assert outcome.reward == 0.0, task_id


def test_the_clock_stands_so_that_an_episode_can_be_played_again(tasks: AgentDojo) -> None:
    mail = call("send_email", recipients=["ada@example.com"], subject="Lunch", body="At one?")
    first, again = (play(tasks, "workspace/user_task_0", [mail])[0] for _ in range(2))
    assert first == again
    assert "2024-05-15 12:00:00" in first.messages[0].content


def test_mistakes_are_told_and_counted(tasks: AgentDojo) -> None:
    scripts = {
        "there is no tool 'fly'": call("fly"),
        "recipients: Field required": call("send_email", subject="Lunch", body="At one?"),
        "are not JSON": Message(
            role="assistant", tool_calls=(ToolCall(id="1", name="get_current_day", arguments="{"),)
        ),
    }
    for complaint, action in scripts.items():
        (outcome,) = play(tasks, "workspace/user_task_0", [action])
        assert complaint in outcome.messages[0].content
        assert outcome.invalid_calls == 1


def test_a_tool_that_fails_says_so_and_is_no_invalid_call(tasks: AgentDojo) -> None:
    (outcome,) = play(tasks, "workspace/user_task_0", [call("get_file_by_id", file_id="999")])
    assert outcome.messages[0].content.startswith("Error: ValueError")
    assert outcome.invalid_calls == 0


def test_what_is_left_out_or_unknown_is_not_found(tasks: AgentDojo) -> None:
    for task_id in ("banking/user_task_5", "workspace/user_task_999", "nowhere/user_task_0"):
        with pytest.raises(NotFound):
            tasks.make().reset(task_id)
    with pytest.raises(InvalidRequest):
        tasks.tasks("validation")
