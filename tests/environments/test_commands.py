"""Commands in messages, by a tool or in plain text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.environments.commands import Reaction, carried_out, listed, offered
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rollout.env import Outcome
from tests.environments.laws import call, say


class Echo:
    """Says what it was told; `win` wins, `pay` earns."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, command: str) -> Reaction:
        self.told.append(command)
        parts = (("paid", 0.5),) if command == "pay" else ()
        return Reaction(text=f"You {command}.", reward_parts=parts, terminated=command == "win")


def done(action: Message, interface: str = "tool", left: int = 9) -> tuple[Outcome, int, list[str]]:
    echo = Echo()
    outcome, used = carried_out(action, interface, echo, left)  # type: ignore[arg-type]
    return outcome, used, echo.told


def several(*commands: str) -> Message:
    calls = [call("act", command=command).tool_calls[0] for command in commands]
    return Message(role="assistant", tool_calls=tuple(calls))


def test_a_call_is_answered_as_a_call_and_a_text_as_a_text() -> None:
    outcome, used, told = done(call("act", command="  go   to\nbed "))
    assert (told, used) == (["go to bed"], 1)
    assert outcome.messages == (Message(role="tool", content="You go to bed.", tool_call_id="call-act"),)
    outcome, _, told = done(say("go to bed"), "text")
    assert outcome.messages == (Message(role="user", content="You go to bed."),)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("look", "look"),
        ("I should look around.\n\n> look  \n\n", "look"),
        ("<think>hm</think><action>go\nnorth</action> and so on", "go north"),
        ("<action>a</action>\n<action> b </action>", "b"),
    ],
)
def test_the_command_of_a_text_is_what_is_marked_or_the_last_line(text: str, command: str) -> None:
    assert done(say(text), "text")[2] == [command]


def test_commands_are_carried_out_in_order_up_to_the_end_and_their_rewards_add_up() -> None:
    outcome, used, told = done(several("pay", "pay", "win", "pay"))
    assert told == ["pay", "pay", "win"]
    assert used == 3
    assert outcome == Outcome(terminated=True, reward_parts=(("paid", 1.0),))


def test_the_last_command_that_is_left_truncates_unless_it_wins() -> None:
    assert done(several("look", "pay", "look"), left=2)[0] == Outcome(truncated=True, reward_parts=(("paid", 0.5),))
    assert done(several("look", "win"), left=2)[0].terminated


@pytest.mark.parametrize(
    ("action", "invalid", "says"),
    [
        (call("jump", command="up"), 1, "there is no tool 'jump'; use act"),
        (call("act", text="up"), 1, "act takes one text called command"),
        (call("act", command=3), 1, "act takes one text called command"),
        (call("act", command=" "), 1, "call act with one command"),
        (call("act", command="x" * 201), 1, "at most 200 characters"),
        (say("go to bed"), 0, "call act with one command"),
    ],
)
def test_what_is_no_command_is_answered_and_uses_one_up(action: Message, invalid: int, says: str) -> None:
    outcome, used, told = done(action)
    assert (told, used, outcome.invalid_calls) == ([], 1, invalid)
    assert says in outcome.messages[0].content


def test_a_call_where_there_are_no_tools_is_invalid_and_the_text_beside_it_counts() -> None:
    message = Message(role="assistant", content="look", tool_calls=call("act", command="sleep").tool_calls)
    outcome, used, told = done(message, "text")
    assert (told, used, outcome.invalid_calls) == (["look"], 2, 1)
    assert [answer.role for answer in outcome.messages] == ["tool", "user"]


def test_only_the_interface_of_tools_offers_one() -> None:
    assert [tool.name for tool in offered("tool")] == ["act"]
    assert offered("text") == ()


def test_possible_commands_are_listed_in_alphabetical_order() -> None:
    assert listed(["open box", "look"]) == "\nYou can: look; open box."


@given(st.text(), st.lists(st.text(max_size=12), max_size=3), st.sampled_from(["tool", "text"]))
def test_a_world_gets_nothing_but_short_lines_of_text(content: str, arguments: list[str], interface: str) -> None:
    calls = [ToolCall(id=str(number), name="act", arguments=text) for number, text in enumerate(arguments)]
    calls.append(call("act", command=content).tool_calls[0])
    for command in done(Message(role="assistant", content=content, tool_calls=tuple(calls)), interface)[2]:
        assert command.encode("utf-8")
        assert 0 < len(command) <= 200
        assert "\n" not in command
