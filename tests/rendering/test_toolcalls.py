import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.rendering.messages import Message, Tool, ToolCall, answer_from_json, answer_to_json
from stepwell.rendering.toolcalls import TOOL_FORMATS
from tests.fakes.models import tiny_renderer


def _tool(name: str) -> Tool:
    properties = {"query": {"type": "string"}}
    return Tool(name=name, parameters={"type": "object", "properties": properties, "required": ["query"]})


TOOLS = (_tool("search"), _tool("read"))
HERMES, LINE = TOOL_FORMATS["hermes"], TOOL_FORMATS["line"]
FRAGMENTS = st.sampled_from(
    [
        *("search", ": ", "read: ", "\n", " ", "x", "<tool_call>", "</tool_call>", "<tool", '{"name": "search"', "}"),
        *('{"name": "search", "arguments": {"query": "a"}}', ", ", '"arguments": {}', '"', "[[[", "NaN"),
    ]
)
TEXTS = st.lists(FRAGMENTS | st.text(max_size=3), max_size=10).map("".join)


def _calls(parsed):
    return [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
@given(text=TEXTS)
def test_what_is_called_plain_content_early_is_content_in_the_end(tool_format, text):
    content = tool_format.parse(text, TOOLS).content
    for end in range(len(text) + 1):
        assert content.startswith(text[: tool_format.plain_length(text[:end], TOOLS)])
        assert tool_format.plain_length(text[:end], TOOLS) <= end


@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
@given(query=st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1))
def test_a_call_that_is_written_reads_back_as_the_same_call(tool_format, query):
    call = ToolCall(id="1", name="search", arguments=json.dumps({"query": query}))
    (written,) = tool_format.write([Message(role="assistant", tool_calls=(call,))], ())
    (written_with_tools,) = tool_format.write([Message(role="assistant", tool_calls=(call,))], TOOLS)[-1:]
    assert written == written_with_tools
    assert _calls(tool_format.parse(written.content, TOOLS)) == [("search", {"query": query})]


def test_hermes_reads_several_calls_and_the_text_before_them():
    block = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'
    parsed = HERMES.parse(f"I look.\n{block}\n{block}", TOOLS)
    assert parsed.content == "I look."
    assert _calls(parsed) == [("search", {"query": "a"})] * 2
    assert parsed.tool_calls[0].id != parsed.tool_calls[1].id


def test_hermes_reads_a_last_call_that_is_not_closed():
    assert _calls(HERMES.parse('<tool_call>{"name": "read", "arguments": {}}', TOOLS)) == [("read", {})]


@pytest.mark.parametrize(
    "inside",
    [
        '{"name": "search", "arguments": {"query": ',
        '{"name": 3, "arguments": {}}',
        '{"arguments": {}}',
        '["search"]',
        '"search"',
        '{"name": "search", "arguments": [1]}',
        '{"name": "search", "arguments": {"n": NaN}}',
        '{"name": "\\ud800", "arguments": {}}',
        "[" * 100_000,
    ],
)
def test_hermes_leaves_a_malformed_call_as_text(inside):
    text = f"<tool_call>{inside}</tool_call>"
    parsed = HERMES.parse(text, TOOLS)
    assert (parsed.content, parsed.tool_calls) == (text, ())


def test_hermes_lists_tools_in_the_system_message_and_results_in_a_user_turn():
    conversation = [
        Message(role="system", content="Be brief."),
        Message(role="tool", content="one", tool_call_id="1"),
        Message(role="tool", content="two", tool_call_id="2"),
    ]
    system, results = HERMES.write(conversation, TOOLS)
    assert system.content.startswith("Be brief.\n\n# Tools")
    assert system.content.count('"name": "search"') == 1
    assert results.role == "user"
    assert results.content == "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"


def test_hermes_makes_a_system_message_if_there_is_none():
    written = HERMES.write([Message(role="user", content="hi")], TOOLS)
    assert [message.role for message in written] == ["system", "user"]


@pytest.mark.parametrize(
    ("text", "argument"), [("search: wells", "wells"), (" search: a: b \n", "a: b"), ('search: "x"', '"x"')]
)
def test_a_line_with_an_offered_name_is_a_call_with_the_rest_as_its_argument(text, argument):
    parsed = LINE.parse(text, TOOLS)
    assert (parsed.content, _calls(parsed)) == ("", [("search", {"query": argument})])


@pytest.mark.parametrize("text", ["find: x", "search:x", "search", "I search: x", "search: a\nread: b", ""])
def test_any_other_reply_is_text(text):
    parsed = LINE.parse(text, TOOLS)
    assert (parsed.content, parsed.tool_calls) == (text, ())


def test_a_tool_without_exactly_one_required_string_cannot_be_called_by_a_line():
    two = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
    number = {"properties": {"a": {"type": "number"}}, "required": ["a"]}
    for parameters in ({}, two, number, {"required": [1], "properties": {}}, {"required": ["a"], "properties": 3}):
        assert LINE.parse("t: x", [Tool(name="t", parameters=parameters)]).tool_calls == ()


def test_a_line_call_and_its_result_are_written_without_decoration():
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
    assert [LINE.plain_length(text, TOOLS) for text in ("", "s", "search: w", "so", "search:w")] == [0, 0, 0, 2, 8]


def test_without_tools_nothing_is_a_call_and_nothing_is_held_back():
    renderer = tiny_renderer("line")
    assert renderer.parse(renderer.encode("search: x<|im_end|>")).content == "search: x"
    assert renderer.plain_length("search: x") == 9
    assert len(renderer.parse(renderer.encode("search: x"), TOOLS).tool_calls) == 1


def test_an_answer_survives_its_json():
    call = ToolCall(id="1", name="search", arguments="{}")
    for answer in (Message(role="assistant", content="é"), Message(role="assistant", tool_calls=(call,))):
        assert answer_from_json(answer_to_json(answer)) == answer


@given(st.text() | st.sampled_from(["[]", "3", '{"content": 1, "tool_calls": [{}]}', "null", '{"tool_calls": 1}']))
def test_any_other_text_is_no_answer(text):
    assert answer_from_json(text) is None
