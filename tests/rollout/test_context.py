"""Context policies: what is dropped, what never is, and that a view is all there is to go on from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from stepwell.rendering.messages import Message
from stepwell.rollout.context import Append, Context, DropReasoning, Summarise, View, Window

OPENING = (Message(role="system", content="be brief"), Message(role="user", content="the task"))


def turn(number: int, words: int = 1) -> tuple[Message, ...]:
    answer = Message(role="assistant", content=f"answer {number}", reasoning=f"thought {number}")
    return (answer, Message(role="user", content=" ".join([f"seen{number}"] * words)))


def view(*words: int) -> View:
    return View(OPENING, turns=tuple(turn(number, count) for number, count in enumerate(words)))


@dataclass
class Desk:
    """Counts words, and answers with a fixed summary."""

    asked: list[tuple[Message, ...]] = field(default_factory=list)
    counted: int = 0

    async def count(self, messages: Sequence[Message]) -> int:
        self.counted += 1
        return sum(len(message.content.split()) for message in messages)

    async def ask(self, messages: Sequence[Message]) -> Message:
        self.asked.append(tuple(messages))
        return Message(role="assistant", content=f" summary {len(self.asked)} ")


async def test_append_leaves_everything() -> None:
    assert await Append().fit(view(1, 2, 3), Desk()) == view(1, 2, 3)


async def test_a_window_of_turns_keeps_the_task_and_the_last_ones() -> None:
    fitted = await Window(turns=2).fit(view(1, 1, 1), Desk())
    assert fitted.opening == OPENING
    assert fitted.turns == view(1, 1, 1).turns[1:]


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 60))
async def test_a_window_of_tokens_drops_as_few_of_the_oldest_turns_as_it_must_and_never_the_last(
    words: list[int], budget: int
) -> None:
    desk, whole = Desk(), view(*words)
    fitted = await Window(max_tokens=budget).fit(whole, desk)
    kept = len(fitted.turns)
    assert fitted.turns == whole.turns[len(words) - kept :]
    assert kept <= 1 or await desk.count(fitted.messages) <= budget
    assert kept >= min(len(words), 1)
    if kept < len(words):  # one more would have been too much
        assert await desk.count(View(OPENING, turns=whole.turns[len(words) - kept - 1 :]).messages) > budget


async def test_reasoning_is_dropped_but_for_the_last_turns_that_keep_it() -> None:
    fitted = await DropReasoning(keep=1).fit(view(1, 1, 1), Desk())
    assert [part[0].reasoning for part in fitted.turns] == ["", "", "thought 2"]
    assert [part[0].content for part in fitted.turns] == ["answer 0", "answer 1", "answer 2"]
    assert await DropReasoning(keep=1).fit(fitted, Desk()) == fitted


async def test_a_prompt_that_is_too_long_becomes_a_summary_by_the_policy_and_the_last_turns() -> None:
    desk, policy = Desk(), Summarise(max_tokens=12, keep=1, instruction="sum up")
    short = view(1)
    assert await policy.fit(short, desk) == short
    long = view(9, 9, 1)
    fitted = await policy.fit(long, desk)
    assert desk.asked == [(*OPENING, *turn(0, 9), *turn(1, 9), Message(role="user", content="sum up"))]
    assert (fitted.opening, fitted.summary, fitted.turns) == (OPENING, "summary 1", long.turns[2:])
    assert [message.role for message in fitted.messages] == ["system", "user", "user", "assistant", "user"]
    assert fitted.messages[2].content.endswith("\nsummary 1")


async def test_a_later_summary_is_made_of_the_earlier_one_and_replaces_it() -> None:
    desk, policy = Desk(), Summarise(max_tokens=12, keep=0, instruction="sum up")
    first = await policy.fit(view(9), desk)
    second = await policy.fit(first.after(*turn(7, 9)), desk)
    assert any("summary 1" in message.content for message in desk.asked[1])
    assert (second.summary, second.turns) == ("summary 2", ())


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"use": "append"}, Append),
        ({"use": "window", "turns": 3}, Window),
        ({"use": "drop_reasoning"}, DropReasoning),
        ({"use": "summarise", "max_tokens": 100}, Summarise),
    ],
)
def test_a_recipe_names_its_policy(settings: dict, kind: type) -> None:
    assert type(TypeAdapter(Context).validate_python(settings)) is kind


@pytest.mark.parametrize("settings", [{"use": "window"}, {"use": "summarise"}, {"use": "nothing"}, {"turns": 1}])
def test_a_policy_that_is_not_said_whole_is_refused(settings: dict) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Context).validate_python(settings)
