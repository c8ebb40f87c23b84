"""Mathematics with a Python tool: what each move of the agent brings."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from stepwell.environments.arithmetic import word_problem
from stepwell.environments.math_python import MathPython, MathPythonConfig
from stepwell.environments.sandbox import BubblewrapConfig
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message
from stepwell.rollout.env import Outcome
from stepwell.rollout.statistics import Typed
from tests.environments.laws import call, opened, play, say

pytest.importorskip("pydantic_monty", reason="the extra `sandbox` is not installed")

ANSWER = str(word_problem("train-0").answer)
RIGHT = Outcome(terminated=True, reward_parts=(("answer", 1.0),))
WRONG = Outcome(terminated=True, reward_parts=(("answer", 0.0),))


@pytest.fixture(scope="module")
def task_set() -> MathPython:
    return MathPython(MathPythonConfig())


def told(task_set: MathPython, *script: Message) -> list[str]:
    return [message.content for outcome in play(task_set, "train-0", script) for message in outcome.messages]


def test_the_question_follows_the_instructions(task_set: MathPython) -> None:
    system, user = opened(task_set, "train-0")
    assert (system.role, user.role, user.content) == ("system", "user", word_problem("train-0").question)


def test_a_program_is_answered_with_what_it_prints_and_its_names_stay(task_set: MathPython) -> None:
    assert told(task_set, call("python", code="x = 6\nprint(x)"), call("python", code="print(7 * x)")) == ["6", "42"]


def test_an_exception_is_no_invalid_call_and_the_agent_reads_it(task_set: MathPython) -> None:
    (outcome,) = play(task_set, "train-0", [call("python", code="1 / 0")])
    assert outcome.invalid_calls == 0
    assert outcome.messages[0].content.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    "action", [call("answer", text=ANSWER), say(f"So it is {ANSWER}."), say(rf"\boxed{{{ANSWER}}}")]
)
def test_the_right_answer_earns_one_however_it_is_given(task_set: MathPython, action: Message) -> None:
    assert play(task_set, "train-0", [action]) == [RIGHT]


@pytest.mark.parametrize("action", [call("answer", text="-1"), say("I do not know."), call("answer", text="")])
def test_any_other_answer_earns_an_explicit_zero(task_set: MathPython, action: Message) -> None:
    assert play(task_set, "train-0", [action]) == [WRONG]


def test_an_answer_ends_the_message_that_it_is_in(task_set: MathPython) -> None:
    first, second = call("python", code="print(1)").tool_calls, call("answer", text=ANSWER).tool_calls
    assert play(task_set, "train-0", [Message(role="assistant", tool_calls=first + second)]) == [RIGHT]


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (call("browse", url="x"), "Error: there is no tool 'browse'; use python or answer."),
        (call("python", text="x"), "Error: python takes one text called code."),
        (call("answer", text=7), "Error: answer takes one text called text."),
    ],
)
def test_a_wrong_call_is_answered_with_an_error_and_counted(task_set: MathPython, action: Message, text: str) -> None:
    wrong, last = play(task_set, "train-0", [action, call("answer", text=ANSWER)])
    assert ([message.content for message in wrong.messages], wrong.invalid_calls) == ([text], 1)
    assert last == RIGHT


def test_only_so_many_calls_of_a_message_are_run(task_set: MathPython) -> None:
    (made,) = call("python", code="print(1)").tool_calls
    (outcome,) = play(task_set, "train-0", [Message(role="assistant", tool_calls=(made,) * 10)])
    assert [message.content for message in outcome.messages] == ["1"] * 8 + [
        "Error: at most 8 calls in one message are answered."
    ] * 2
    assert outcome.invalid_calls == 2


def test_the_turn_limit_truncates_with_an_explicit_zero() -> None:
    tasks = MathPython(MathPythonConfig(max_turns=2))
    _, last = play(tasks, "train-0", [call("python", code="print(1)")] * 2)
    assert last == Outcome(truncated=True, reward_parts=(("answer", 0.0),))


async def test_no_step_without_a_running_episode(task_set: MathPython) -> None:
    environment = task_set.make()
    with pytest.raises(InvalidRequest, match="reset"):
        await environment.step(say("1"))


def test_tasks_are_named_after_their_split_and_have_a_kind(task_set: MathPython) -> None:
    assert isinstance(task_set, Typed)
    assert task_set.task_type("train-0") == word_problem("train-0").kind
    with pytest.raises(InvalidRequest, match="train or test"):
        task_set.tasks("dev")
    for unknown in ("dev-0", "train-", "train-x", "train-²"):
        with pytest.raises(NotFound):
            task_set.make().reset(unknown)


def test_a_set_from_a_file_is_judged_as_mathematics(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"problem": "Simplify.", "answer": r"\sqrt{8}", "subject": "Algebra"}), encoding="utf-8")
    tasks = MathPython(MathPythonConfig(dataset="math500", path=tmp_path))
    assert (tasks.tasks("train"), tasks.tasks("test"), tasks.task_type("test-0")) == ([], ["test-0"], "Algebra")
    assert play(tasks, "test-0", [call("answer", text=r"2\sqrt{2}")]) == [RIGHT]
    (unknown,) = play(tasks, "test-0", [call("answer", text="9^{9^{9^{9}}}")])
    assert unknown.reward_parts == (("answer", 0.0), ("unchecked", 0.0))


def test_the_tool_says_what_its_sandbox_can() -> None:
    tools = {tool.name: tool.description for tool in MathPython(MathPythonConfig()).make().tools}
    assert "Names stay defined" in tools["python"]


@pytest.mark.parametrize(
    "settings",
    [{"path": "x"}, {"revision": "x"}, {"dataset": "gsm8k", "path": "x", "revision": "y"}, {"sandbox": {"use": "no"}}],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MathPythonConfig.model_validate(settings)


def test_the_sandbox_is_chosen_by_a_word() -> None:
    config = MathPythonConfig.model_validate({"sandbox": {"use": "bubblewrap", "seconds": 3}})
    assert config.sandbox == BubblewrapConfig(seconds=3)
