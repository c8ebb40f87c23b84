import json

import pytest

from stepwell.rendering.messages import Tool
from stepwell.rendering.pieces import CallArguments
from tests.rendering.replies import message, parser_of

SCHEMAS = {
    "text": {"type": "string"},
    "maybe": {"anyOf": [{"type": "null"}, {"type": "string"}]},
    "either": {"type": ["string", "number"]},
    "choice": {"enum": ["1", "2"]},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "list": {"type": "array"},
}
TOOL = Tool(name="f", parameters={"type": "object", "properties": SCHEMAS})


def _argument(tool_format: str, key: str, text: str) -> object:
    written = {
        "qwen_xml": f"<tool_call>\n<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>",
        "glm": f"<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
    }
    (call,) = message(tool_format, written[tool_format], [TOOL]).tool_calls
    return json.loads(call.arguments)[key]


@pytest.mark.parametrize("tool_format", ["qwen_xml", "glm"])
@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "5", "5"),
        ("text", "", ""),
        ("text", '  two\n\nlines "quoted" \\ \n', '  two\n\nlines "quoted" \\ \n'),
        ("maybe", "null", "null"),
        ("either", "5", "5"),
        ("choice", "1", "1"),
        ("number", "5.0", 5.0),
        ("number", "five", "five"),
        ("number", "NaN", "NaN"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("list", '["a", {"b": 1}]', ["a", {"b": 1}]),
        ("list", "[" * 100_000, "[" * 100_000),
        ("unknown", "None", None),
        ("unknown", "words", "words"),
    ],
)
def test_text_becomes_what_the_schema_says(tool_format, key, text, value):
    assert _argument(tool_format, key, text) == value


def test_text_streams_and_its_last_line_break_waits():
    parser = parser_of("qwen_xml", [TOOL])
    parser.feed("<function=f>\n<parameter=text>\n")
    assert [parser.feed(part) for part in ('say "a', "\n", "é", "\n", "</parameter>")] == [
        [CallArguments('say \\"a')],
        [],
        [CallArguments("\\né")],
        [],
        [CallArguments('"')],
    ]


def test_a_call_of_a_tool_that_was_not_offered_has_its_values_by_their_looks():
    one, other = (
        f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n" for key, text in (("a", "1"), ("b", "x"))
    )
    text = f"<tool_call>g\n{one}{other}</tool_call>"
    (call,) = message("glm", text, [TOOL]).tool_calls
    assert (call.name, call.arguments) == ("g", '{"a": 1, "b": "x"}')
