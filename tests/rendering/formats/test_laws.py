"""What holds for every tool format in the table."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.rendering.formats import TOOL_FORMATS
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rendering.pieces import CallClosed, CallOpened, TextPiece, message_of
from tests.rendering.replies import TOOLS, calls_with_values, is_beginning, joined, parser_of, read

SYNTAX = [
    *(
        "search",
        "read",
        "name",
        "arguments",
        "parameters",
        "query",
        "a",
        " ",
        "\n",
        ": ",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
    ),
    *(",", ";", "'", "<", ">", "<tool", "_call>", "<tool_call>", "</tool_call>", "<function=search>", "</function>"),
    *(
        "<parameter=query>",
        "</parameter>",
        "<parameter=count>",
        "<arg_key>query</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    *('{"name": "search", "arguments": ', '{"query": "x"}', '"name": "read"', "NaN", '"\\ud800"', "search: x"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "```json\n", "```", "function"),
    *("<|channel|>", "analysis", "commentary to=functions.search", "<|message|>", "<|end|>", "<|call|>", "<|start|>"),
    *(mark for tool_format in TOOL_FORMATS.values() for mark in tool_format.marks),
]
TEXTS = st.lists(st.sampled_from(SYNTAX) | st.text(max_size=3), max_size=14).map("".join)
VALUES = st.dictionaries(
    st.sampled_from(["query", "extra"]),
    st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(['}"{', "a\nb\n", "{[}", "</tool", "é🙂", ""]),
    min_size=1,
)
every_format = pytest.mark.parametrize("tool_format", TOOL_FORMATS)


def _cuts(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


@every_format
@given(text=TEXTS, places=st.lists(st.integers(0, 1000), max_size=8))
def test_what_is_read_does_not_depend_on_how_the_text_is_cut(tool_format, text, places):
    whole = joined(read(parser_of(tool_format), [text]))
    assert joined(read(parser_of(tool_format), _cuts(text, places))) == whole
    assert joined(read(parser_of(tool_format), text)) == whole


@every_format
@given(text=TEXTS)
def test_no_piece_is_ever_taken_back(tool_format, text):
    whole = joined(read(parser_of(tool_format), [text]))
    parser, early = parser_of(tool_format), []
    for character in text:
        early += parser.feed(character)
        assert is_beginning(joined(early), whole)


@every_format
@given(text=TEXTS)
def test_calls_are_opened_and_closed_in_turn_and_no_piece_is_empty(tool_format, text):
    pieces = read(parser_of(tool_format), [text])
    order = [type(piece) for piece in pieces if isinstance(piece, CallOpened | CallClosed)]
    assert order == [CallOpened, CallClosed] * (len(order) // 2)
    assert all(piece.text for piece in pieces if hasattr(piece, "text"))


@every_format
@given(text=TEXTS)
def test_without_tools_nothing_is_a_call_and_nothing_but_harmonys_headers_is_lost(tool_format, text):
    answer = message_of(read(parser_of(tool_format, ()), [text]))
    assert answer.tool_calls == ()
    if tool_format != "harmony":
        assert answer.content == text


def _written(tool_format, *arguments):
    calls = [
        ToolCall(id="1", name=name, arguments=text) for name, text in zip(("search", "read"), arguments, strict=False)
    ]
    return TOOL_FORMATS[tool_format].write_calls(calls, TOOLS)


@every_format
@given(values=VALUES, indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
def test_a_call_that_is_written_reads_back_as_the_same_call(tool_format, values, indent, ascii_only):
    if tool_format == "line":
        values = {"query": " ".join("".join(values.values()).split()) or "x"}
    if tool_format in ("qwen_xml", "glm"):  # only values without the closing tag can be written
        values = {key: value.replace("<", "") for key, value in values.items()}
        # What is not declared to be text is read as JSON where it can be; see test_typed.py.
        values = {"query": values.get("query", "x")}
    text = _written(tool_format, json.dumps(values, indent=indent, ensure_ascii=ascii_only))
    answer = message_of(read(parser_of(tool_format), [text]))
    assert (answer.content, calls_with_values(answer)) == ("", [("search", values)])


@pytest.mark.parametrize("tool_format", sorted(set(TOOL_FORMATS) - {"line"}))
def test_parallel_calls_and_the_text_before_them_are_read(tool_format):
    text = _written(tool_format, '{"query": "a\\n}"}', '{"query": "é"}')
    if tool_format not in ("llama3_json", "harmony"):  # those begin a turn, or have a channel for text
        text = f"Let me look.\n\n{text}"
    answer = message_of(read(parser_of(tool_format), text))
    assert answer.content in ("", "Let me look.")
    assert calls_with_values(answer) == [("search", {"query": "a\n}"}), ("read", {"query": "é"})]
    assert answer.tool_calls[0].id != answer.tool_calls[1].id


@pytest.mark.parametrize("tool_format", sorted(set(TOOL_FORMATS) - {"line", "qwen_xml", "glm"}))
def test_arguments_are_the_very_characters_that_were_sampled(tool_format):
    arguments = '{ "query":"\\u00e9" ,\n"deep" : {"a":[1.50,{}]}}'
    (call,) = message_of(read(parser_of(tool_format), _written(tool_format, arguments))).tool_calls
    assert call.arguments == arguments


@pytest.mark.parametrize("tool_format", sorted(set(TOOL_FORMATS) - {"line"}))
def test_a_call_that_is_cut_keeps_what_came_and_a_name_is_announced_before_the_arguments(tool_format):
    text = _written(tool_format, '{"query": "wells of"}')
    text = text[: text.index("wells") + 5]
    parser = parser_of(tool_format)
    pieces = [piece for character in text for piece in parser.feed(character)]
    assert any(isinstance(piece, CallOpened) for piece in pieces)
    (call,) = message_of([*pieces, *parser.finish()]).tool_calls
    assert (call.name, call.arguments) == ("search", '{"query": "wells')


@every_format
def test_text_is_passed_on_as_it_comes(tool_format):
    parser = parser_of(tool_format)
    parts = ["The", " quick", " fox", ".\n", "Yes"]
    assert [parser.feed(part) for part in parts] == [
        *([TextPiece(part)] for part in parts[:3]),
        [TextPiece(".")],
        [TextPiece("\nYes")],
    ]


@every_format
def test_calls_of_the_past_are_written_without_tools_as_with_them(tool_format):
    call = ToolCall(id="1", name="search", arguments='{"query": "a"}')
    conversation = [
        Message(role="user", content="q"),
        Message(role="assistant", content="Hm.", reasoning="r", tool_calls=(call,)),
    ]
    with_tools = TOOL_FORMATS[tool_format].write(conversation, TOOLS)
    without = TOOL_FORMATS[tool_format].write(conversation, ())
    assert without[-1] == with_tools[-1]
    assert without[-1].content.startswith("Hm.\n")
    assert not without[-1].tool_calls


@every_format
def test_a_format_knows_its_name(tool_format):
    assert TOOL_FORMATS[tool_format].name == tool_format
