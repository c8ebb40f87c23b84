import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.wire import (
    answer_from_json,
    answer_to_json,
    displayed,
    message_from_json,
    message_to_json,
    tool_to_json,
)

CALL = ToolCall(id="1", name="search", arguments='{"broken": ')
WORDS = st.text(max_size=5)
CALLS = st.builds(ToolCall, id=WORDS, name=WORDS, arguments=WORDS)
ANSWERS = st.builds(
    Message,
    role=st.just("assistant"),
    content=WORDS,
    reasoning=WORDS,
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "tool_calls", "function", "id", "text"]), inner, max_size=4
        )
    ),
)


@given(ANSWERS)
def test_an_answer_survives_its_json(answer):
    assert answer_from_json(answer_to_json(answer)) == answer


@given(st.text() | JSON.map(json.dumps) | st.sampled_from(['{"role": "user", "content": "a"}', "[" * 100_000]))
def test_what_is_no_answer_is_none(text):
    found = answer_from_json(text)
    assert found is None or found.role == "assistant"


def test_a_call_without_content_has_null_content_and_reasoning_has_a_field():
    answer = Message(role="assistant", reasoning="hm", tool_calls=(CALL,))
    assert json.loads(answer_to_json(answer)) == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "search", "arguments": CALL.arguments}},
        ],
    }
    assert message_from_json(json.loads(answer_to_json(answer))) == answer


def test_a_result_names_its_call():
    result = Message(role="tool", content="r", tool_call_id="1")
    assert message_to_json(result) == {"role": "tool", "content": "r", "tool_call_id": "1"}
    assert message_from_json(message_to_json(result)) == result


def test_a_tool_is_a_function():
    shape = tool_to_json(Tool(name="f", description="d", parameters={"type": "object"}))
    assert shape == {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }


@pytest.mark.parametrize(
    "shape",
    [None, [], {}, {"role": "king"}, {"role": "user", "content": ["x"]}, {"role": "assistant", "tool_calls": [{}]}],
)
def test_another_shape_is_a_value_error(shape):
    with pytest.raises(ValueError, match="not a chat message"):
        message_from_json(shape)


@given(JSON)
def test_anything_can_be_displayed(shape):
    assert isinstance(displayed(shape), str)


def test_a_message_is_displayed_as_its_text_and_its_calls():
    shape = message_to_json(Message(role="assistant", content="Hm.", tool_calls=(CALL,)))
    assert displayed(shape) == 'Hm.\n→ search({"broken": )'
    assert displayed({"content": [{"type": "text", "text": "a"}, {"type": "image"}]}) == 'a\n{"type": "image"}'
