import dataclasses
import json

import pytest

from stepwell.pool.archive.conversation import Conversation, chat_request, conversation_of, said, writable
from stepwell.rendering.messages import Message
from tests.pool.archive.builders import ASKED, TOOL, chat_step


def test_a_chat_completion_is_read_back_with_its_tools_and_answer() -> None:
    answer = Message(role="assistant", content="There.")
    step = chat_step("t", [ASKED], answer, tools=[TOOL])
    assert said(step) == Conversation((ASKED, answer), (TOOL,))


def test_parts_of_text_become_one_text_and_developers_are_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = conversation_of({"messages": [{"role": "developer", "content": parts}]})
    assert asked.messages == (Message(role="system", content="a\nb"),)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"messages": []},
        {"messages": ["hi"]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": 3},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "web_search"}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": 3}}]},
    ],
)
def test_what_is_no_conversation_of_text_is_refused(body: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        conversation_of(body)
    step = dataclasses.replace(chat_step("t", [ASKED], ASKED), request=json.dumps(body))
    assert chat_request(step) is None


def test_other_dialects_and_steps_without_a_message_tell_nothing() -> None:
    step = chat_step("t", [ASKED], Message(role="assistant", content="x"))
    assert said(dataclasses.replace(step, dialect="messages")) is None
    assert said(dataclasses.replace(step, response="plain text")) is None


def test_lone_surrogates_cannot_be_written_as_text() -> None:
    assert writable(Conversation((ASKED,)))
    assert not writable(Conversation((Message(role="user", content="\ud800"),)))
