import pytest

from stepwell.errors import InvalidRequest
from stepwell.rendering.formats import TOOL_FORMATS
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.pieces import TextPiece
from tests.rendering.replies import TOOLS, joined, parser_of, said_and_called

LINE = TOOL_FORMATS["line"]


@pytest.mark.parametrize(
    ("text", "argument"), [("search: wells", "wells"), (" search: a: b \n", "a: b"), ('search: "x"', '\\"x\\"')]
)
def test_a_line_with_an_offered_name_is_a_call_with_the_rest_as_its_argument(text, argument):
    assert said_and_called("line", text) == ("", [("search", f'{{"query": "{argument}"}}')])


@pytest.mark.parametrize(
    "text", ["find: x", "search:x", "search", "search: ", "I search: x", "search: a\nread: b", " \n", "\nsearch: \nx "]
)
def test_any_other_reply_is_text(text):
    assert said_and_called("line", text) == (text, [])


def test_a_tool_without_exactly_one_required_string_cannot_be_called_by_a_line():
    two = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
    number = {"properties": {"a": {"type": "number"}}, "required": ["a"]}
    for parameters in ({}, two, number, {"required": [1], "properties": {}}, {"required": ["a"], "properties": 3}):
        assert said_and_called("line", "t: x", [Tool(name="t", parameters=parameters)]) == ("t: x", [])


def test_a_call_and_its_result_are_written_without_decoration():
    call = ToolCall(id="1", name="search", arguments='{"query": "wells"}')
    conversation = [Message(role="assistant", tool_calls=(call,)), Message(role="tool", content="page 3")]
    assert [(m.role, m.content) for m in LINE.write(conversation, TOOLS)] == [
        ("assistant", "search: wells"),
        ("user", "page 3"),
    ]


def test_arguments_that_are_not_json_are_written_as_they_are():
    call = ToolCall(id="1", name="search", arguments="wells")
    assert LINE.write([Message(role="assistant", tool_calls=(call,))], TOOLS)[0].content == "search: wells"


def test_a_line_is_held_back_only_while_it_can_still_be_a_call():
    parser = parser_of("line")
    assert [parser.feed(part) for part in ("s", "earch: ", "wells\n")] == [[], [], []]
    assert joined(parser.feed("and")) == [TextPiece("search: wells\nand")]
    assert parser.feed("!") == [TextPiece("!")]
    assert parser_of("line").feed("so") == [TextPiece("so")]


def test_a_call_cannot_be_forced():
    with pytest.raises(InvalidRequest, match="cannot be forced to call 'search'"):
        LINE.forced(TOOLS)
