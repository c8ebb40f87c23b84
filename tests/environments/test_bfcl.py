"""BFCL multi-turn by its own package: reference solutions score, turn by turn, and mistakes are told."""

import inspect
import json

import pytest

pytest.importorskip("bfcl_eval", reason="needs: pip install --no-deps bfcl-eval")

from stepwell.environments.bfcl import BFCL, BFCLConfig
from stepwell.environments.bfcl_world import Programs
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message, ToolCall
from tests.environments.laws import call, play, say

FILES = "multi_turn_base_0"
"""Files are to be moved, searched, sorted and compared, in four requests."""


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs()


@pytest.fixture(scope="module")
def tasks() -> BFCL:
    return BFCL(BFCLConfig(turn_weight=1.0))


def _solution(programs: Programs, task_id: str) -> list[Message]:
    """The reference solution, one call a message, and a word after each request."""
    (conversation,) = (one for one in programs.conversations() if one.id == task_id)
    instances = programs.begin(conversation)
    script = []
    for turn in conversation.gold:
        for number, gold in enumerate(turn):
            owner = next(one for one in instances.values() if hasattr(one, gold.name))
            names = list(inspect.signature(getattr(owner, gold.name)).parameters)
            arguments = dict(zip(names, gold.positional, strict=False)) | dict(gold.named)
            made = ToolCall(id=str(number), name=gold.name, arguments=json.dumps(arguments))
            script.append(Message(role="assistant", tool_calls=(made,)))
        script.append(say("Done."))
    return script


def test_199_conversations_have_a_fifth_held_out(tasks: BFCL) -> None:
    assert len(tasks.tasks("train")) + len(tasks.tasks("test")) == 199
    assert 25 < len(tasks.tasks("test")) < 55
    assert tasks.task_type(FILES) == "GorillaFileSystem+TwitterAPI"


def test_every_reference_solution_passes_every_check_without_an_invalid_call(programs: Programs, tasks: BFCL) -> None:
    for task_id in (*tasks.tasks("train"), *tasks.tasks("test")):
        outcomes = play(tasks, task_id, _solution(programs, task_id))
        assert dict(outcomes[-1].reward_parts)["solved"] == 1.0, task_id
        assert sum(outcome.invalid_calls for outcome in outcomes) == 0, task_id
        assert sum(dict(outcome.reward_parts).get("turn", 0.0) for outcome in outcomes) == pytest.approx(1.0)


def test_requests_follow_one_another_and_the_last_ends_the_episode(tasks: BFCL) -> None:
    outcomes = play(tasks, FILES, [say("Done.")] * 4)
    assert [len(outcome.messages) for outcome in outcomes] == [1, 1, 1, 0]
    assert "budget analysis" in outcomes[0].messages[0].content
    assert outcomes[-1].terminated
    assert dict(outcomes[-1].reward_parts) == {"solved": 0.0, "turn": 0.0}


def test_a_request_that_fails_spoils_the_verdict_but_not_the_turns_before_it(programs: Programs, tasks: BFCL) -> None:
    script = _solution(programs, FILES)
    end_of_first = next(number for number, message in enumerate(script) if not message.tool_calls)
    outcomes = play(tasks, FILES, [*script[: end_of_first + 1], *[say("Done.")] * 3])
    parts = [dict(outcome.reward_parts).get("turn", 0.0) for outcome in outcomes]
    assert sum(parts) == pytest.approx(0.25)
    assert dict(outcomes[-1].reward_parts)["solved"] == 0.0


def test_too_many_steps_for_a_request_cut_the_episode_short() -> None:
    outcomes = play(BFCL(BFCLConfig(max_steps=2)), FILES, [call("ls"), call("ls")])
    assert outcomes[-1].truncated
    assert outcomes[-1].reward_parts == (("solved", 0.0),)


def test_tools_that_a_conversation_excludes_are_not_offered(tasks: BFCL) -> None:
    environment = tasks.make()
    environment.reset(FILES)
    names = [tool.name for tool in environment.tools]
    assert "mv" in names
    assert "cp" not in names
    assert {tool.parameters["type"] for tool in environment.tools} == {"object"}


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        (call("cp", source="a", destination="b"), "there is no tool 'cp'"),
        (call("_load_scenario", scenario={}), "there is no tool '_load_scenario'"),
        (call("cd", folder=3), "folder must be string"),
        (call("cd"), "folder is missing"),
        (call("ls", a=True, sort=True), "there is no sort"),
    ],
)
def test_mistakes_are_told_and_counted(tasks: BFCL, action: Message, complaint: str) -> None:
    (outcome,) = play(tasks, FILES, [action])
    assert complaint in outcome.messages[0].content
    assert outcome.invalid_calls == 1


def test_what_a_program_refuses_is_its_answer_and_no_invalid_call(tasks: BFCL) -> None:
    (outcome,) = play(tasks, FILES, [call("cd", folder="nowhere")])
    assert "No such file or directory" in outcome.messages[0].content
    assert outcome.invalid_calls == 0


def test_numbers_that_would_be_computed_for_hours_are_refused(programs: Programs, tasks: BFCL) -> None:
    (with_calculator, *_) = (one.id for one in programs.conversations() if "MathAPI" in one.classes)
    for action in (call("power", base=9, exponent=10**9), call("logarithm", value=2, base=10, precision=10**9)):
        (outcome,) = play(tasks, with_calculator, [action])
        assert "must not be beyond" in outcome.messages[0].content
        assert outcome.invalid_calls == 1


def test_a_folder_moved_into_itself_is_an_answer_and_no_crash(tasks: BFCL) -> None:
    script = [call("cd", folder="document"), call("mkdir", dir_name="a"), call("mv", source="a", destination="a")]
    outcomes = play(tasks, FILES, [*script, call("find", path="."), *[say("Done.")] * 4])
    assert outcomes[-1].terminated


def test_unknown_tasks_and_splits_are_refused(tasks: BFCL) -> None:
    with pytest.raises(NotFound):
        tasks.make().reset("multi_turn_base_173")
    with pytest.raises(InvalidRequest):
        tasks.tasks("validation")
