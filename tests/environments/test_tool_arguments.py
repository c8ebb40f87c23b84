"""Arguments of calls are held against schemas, and what is wrong is said in words."""

import json

import pytest

from stepwell.environments.tool_arguments import Misused, checked_arguments, untitled
from stepwell.rendering.messages import Tool, ToolCall

BOOK = Tool(
    name="book",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Marn", "Tibb"]},
            "nights": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "guests": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
            "notes": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)


def _checked(arguments: object, name: str = "book") -> dict[str, object]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return checked_arguments(ToolCall(id="1", name=name, arguments=text), {"book": BOOK})


@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "Marn"},
        {"city": "Tibb", "nights": 2, "price": None, "guests": [{"name": "Ada"}], "notes": {"any": "text"}},
        {"city": "Marn", "price": 3, "nights": 2.0},
        {"city": "Marn", "guests": [{"name": "Ada", "age": 3}]},
    ],
)
def test_arguments_of_the_right_form_are_taken_as_they_are(arguments: dict[str, object]) -> None:
    assert _checked(arguments) == arguments


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "city is missing"),
        ({"city": "Ashe"}, "city must be one of Marn, Tibb"),
        ({"city": 1}, "city must be string"),
        ({"city": "Marn", "nights": True}, "nights must be integer"),
        ({"city": "Marn", "nights": 1.5}, "nights must be integer"),
        ({"city": "Marn", "price": "3"}, "price must be number or null"),
        ({"city": "Marn", "guests": [{"name": 1}]}, r"guests\[0\]\.name must be string"),
        ({"city": "Marn", "notes": {"a": 1}}, r"notes\.a must be string"),
        ({"city": "Marn", "view": "sea"}, "there is no view"),
        ([], "must be a JSON object"),
        ("{", "are not JSON"),
        ("[" * 100_000, "are not JSON"),
        ('{"city": "Marn", "price": NaN}', "NaN is no JSON value"),
    ],
)
def test_others_are_refused_with_what_is_wrong(arguments: object, complaint: str) -> None:
    with pytest.raises(Misused, match=complaint):
        _checked(arguments)


def test_an_unknown_tool_is_answered_with_those_there_are() -> None:
    with pytest.raises(Misused, match="there is no tool 'cook'; use book"):
        _checked({}, "cook")


def test_titles_are_left_out_of_schemas_but_not_parameters_of_that_name() -> None:
    schema = {"title": "Args", "properties": {"title": {"type": "string", "title": "Title"}}, "required": ["title"]}
    assert untitled(schema) == {"properties": {"title": {"type": "string"}}, "required": ["title"]}
