"""The lookup task rewards exactly the answer that its own tools lead to."""

import json

import pytest

from stepwell.environments.lookup import TOOLS, LookupConfig, LookupTasks
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rollout.env import Environment, Outcome
from tests.environments.laws import call, say


@pytest.fixture
def task_set() -> LookupTasks:
    return LookupTasks(LookupConfig())


def find(environment: Environment, task_id: str = "train-0") -> tuple[str, str]:
    """Play the first two turns of a task; gives box and colour."""
    item = environment.reset(task_id)[-1].content.removeprefix("find ")
    box = told(environment.step(call("search", item=item)))
    return box, told(environment.step(call("open", box=box)))


def told(outcome: Outcome) -> str:
    (message,) = outcome.messages
    return message.content


@pytest.mark.parametrize("task_id", ["train-0", "train-99999", "test-7"])
def test_following_the_tools_to_the_colour_earns_one_at_the_end_and_nothing_before(
    task_set: LookupTasks, task_id: str
) -> None:
    environment = task_set.make()
    _, colour = find(environment, task_id)
    last = environment.step(call("answer", colour=colour))
    assert last == Outcome(terminated=True, reward_parts=(("solved", 1.0),))


@pytest.mark.parametrize(
    "action",
    [
        say("the colour"),
        call("answer", colour="??"),
        call("answer"),
        call("answer", colour=3),
        Message(role="assistant", tool_calls=(ToolCall(id="c", name="answer", arguments="[" * 20_000),)),
    ],
    ids=["words", "wrong", "nothing", "a number", "brackets"],
)
def test_any_other_ending_earns_an_explicit_zero(task_set: LookupTasks, action: Message) -> None:
    environment = task_set.make()
    environment.reset("train-0")
    assert environment.step(action) == Outcome(terminated=True, reward_parts=(("solved", 0.0),))


def test_the_right_colour_under_another_name_or_called_twice_is_no_answer(task_set: LookupTasks) -> None:
    environment = task_set.make()
    _, colour = find(environment)
    assert environment.step(call("answer", text=colour)).reward == 0
    find(environment)
    (made,) = call("answer", colour=colour).tool_calls
    assert environment.step(Message(role="assistant", tool_calls=(made, made))).reward == 0


@pytest.mark.parametrize(
    "action", [call("search", item="??"), call("open", box="??"), call("open", item="??"), call("paint", box="??")]
)
def test_a_call_that_finds_nothing_is_told_so_and_answers_its_own_id(task_set: LookupTasks, action: Message) -> None:
    environment = task_set.make()
    environment.reset("train-0")
    (message,) = environment.step(action).messages
    assert message == Message(role="tool", content="none", tool_call_id=action.tool_calls[0].id)


def test_the_last_allowed_turn_without_an_answer_truncates_without_a_message() -> None:
    environment = LookupTasks(LookupConfig(max_turns=2)).make()
    environment.reset("train-0")
    assert not environment.step(call("search", item="ab")).truncated
    assert environment.step(call("search", item="ab")) == Outcome(truncated=True)


def test_tasks_differ_and_are_named_after_their_split(task_set: LookupTasks) -> None:
    openings = {task_set.make().reset(task)[0].content for task in task_set.tasks("train")[:100]}
    assert len(openings) > 80
    with pytest.raises(NotFound, match="train-N and test-N"):
        task_set.make().reset("dev-0")
    with pytest.raises(InvalidRequest, match="train or test"):
        task_set.tasks("dev")


def test_a_demonstration_without_errors_copies_each_argument_from_what_it_was_told(task_set: LookupTasks) -> None:
    messages = task_set.demonstration(3, wrong=0.0)
    heard = [message.content.removeprefix("find ") for message in messages if message.role in ("user", "tool")]
    calls = [made for message in messages for made in message.tool_calls]
    assert [made.name for made in calls] == [tool.name for tool in TOOLS]
    assert [next(iter(json.loads(made.arguments).values())) for made in calls] == heard


def test_a_demonstration_with_errors_keeps_the_form_and_hits_by_chance_only(task_set: LookupTasks) -> None:
    rights = 0
    for seed in range(50):
        right = [m for m in task_set.demonstration(seed, wrong=0.0) if m.role == "assistant"]
        wrong = [m for m in task_set.demonstration(seed, wrong=1.0) if m.role == "assistant"]
        for shown, true in zip(wrong, right, strict=True):
            (made,), (meant,) = shown.tool_calls, true.tool_calls
            assert (made.name, list(json.loads(made.arguments))) == (meant.name, list(json.loads(meant.arguments)))
            rights += made.arguments == meant.arguments
    assert rights <= 5
