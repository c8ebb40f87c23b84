"""Reading a call's one text never raises and accepts nothing but the tool's own form."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.environments.toolcalls import text_argument, text_tool
from stepwell.rendering.messages import ToolCall

PARAMETERS = {"search": "query"}
json_values = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=2)


def made(arguments: str, name: str = "search") -> ToolCall:
    return ToolCall(id="c", name=name, arguments=arguments)


@given(st.text())
def test_the_one_text_under_the_parameters_name_is_read(text: str) -> None:
    assert text_argument(made(json.dumps({"query": text})), PARAMETERS) == text


@given(st.text() | st.dictionaries(st.text(), json_values, max_size=3).map(json.dumps))
def test_whatever_else_a_policy_writes_is_none(arguments: str) -> None:
    read = text_argument(made(arguments), PARAMETERS)
    assert read is None or json.loads(arguments) == {"query": read}


@pytest.mark.parametrize(
    "arguments", ["", "[" * 20_000, "null", "[]", '{"query": 3}', '{"query": "a", "more": "b"}', '{"text": "a"}']
)
def test_arguments_of_another_form_are_none(arguments: str) -> None:
    assert text_argument(made(arguments), PARAMETERS) is None


def test_a_tool_that_is_not_offered_is_none() -> None:
    assert text_argument(made('{"query": "a"}', name="find"), PARAMETERS) is None


def test_the_tools_schema_requires_its_one_text() -> None:
    assert text_tool("search", "query", "Find.").parameters == {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    }
