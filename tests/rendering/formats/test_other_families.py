"""What is special about the families that have no tests of their own; the laws cover the rest."""

import json

import pytest

from stepwell.errors import InvalidRequest
from stepwell.rendering.formats import TOOL_FORMATS, find_tool_format
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.pieces import ReasoningPiece, TextPiece
from tests.rendering.replies import TOOLS, joined, message, parser_of, said_and_called

CALL = ToolCall(id="call-1", name="search", arguments='{"query": "a"}')
SEARCHED = [("search", '{"query": "a"}')]


def test_llama_calls_only_offered_tools_without_its_tag_and_any_with_it():
    bare = '{"name": "find", "parameters": {"query": "a"}}'
    assert said_and_called("llama3_json", bare) == (bare, [])
    assert said_and_called("llama3_json", f"<|python_tag|>{bare}") == ("", [("find", '{"query": "a"}')])
    assert said_and_called("llama3_json", bare.replace("find", "search")) == ("", SEARCHED)


def test_an_answer_of_llama_that_happens_to_be_json_is_not_held_back():
    parser = parser_of("llama3_json")
    assert joined(parser.feed('{"answer": {"long"')) == [TextPiece('{"answer": {"long"')]


def test_mistral_reads_its_array_and_its_newer_form_with_call_ids():
    assert said_and_called("mistral", '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "a"}}]') == (
        "",
        SEARCHED,
    )
    newer = '[TOOL_CALLS]search[CALL_ID]abc123xyz[ARGS]{"query": "a"}'
    assert said_and_called("mistral_args", newer * 2) == ("", SEARCHED * 2)
    assert said_and_called("mistral", '[TOOL_CALLS] search{"query": "a"}') == ("", SEARCHED)


def test_mistrals_templates_get_the_same_short_id_for_a_call_and_its_result():
    shape = TOOL_FORMATS["mistral"].shape(Message(role="assistant", tool_calls=(CALL,)))
    result = TOOL_FORMATS["mistral"].shape(Message(role="tool", content="r", tool_call_id=CALL.id))
    short = shape["tool_calls"][0]["id"]
    assert (len(short), short.isalnum(), result["tool_call_id"]) == (9, True, short)
    kept = TOOL_FORMATS["mistral"].shape(Message(role="tool", content="r", tool_call_id="abcDEF123"))
    assert kept["tool_call_id"] == "abcDEF123"


@pytest.mark.parametrize("tool_format", ["deepseek", "deepseek_v31"])
def test_deepseek_reads_the_calls_of_either_version(tool_format):
    older, newer = (TOOL_FORMATS[name].write_calls([CALL, CALL], TOOLS) for name in ("deepseek", "deepseek_v31"))
    assert "```json" in older
    assert "```json" not in newer
    for text in (older, newer):
        assert said_and_called(tool_format, f"Hm.\n{text}") == ("Hm.", SEARCHED * 2)


def test_deepseeks_templates_get_arguments_as_text_and_no_content():
    shape = TOOL_FORMATS["deepseek"].shape(Message(role="assistant", tool_calls=(CALL,)))
    assert shape["content"] is None
    assert shape["tool_calls"][0]["function"]["arguments"] == CALL.arguments


def test_glm_leaves_a_name_that_nothing_follows_as_text():
    assert said_and_called("glm", "<tool_call> is the tag") == ("<tool_call> is the tag", [])
    assert said_and_called("glm", "<tool_call>search</tool_call>") == ("", [("search", "{}")])


def test_qwens_outer_tags_may_be_missing():
    text = "Hm.\n<function=search>\n<parameter=query>\na\n</parameter>\n</function>"
    assert said_and_called("qwen_xml", text) == ("Hm.", SEARCHED)
    assert said_and_called("qwen_xml", "<tool_call>\nsearch") == ("<tool_call>\nsearch", [])


HARMONY = (
    "<|channel|>analysis<|message|>Think. <|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "a"}<|call|>'
)


def test_harmonys_channels_are_reasoning_text_and_calls():
    answer = message("harmony", HARMONY)
    assert (answer.reasoning, answer.content) == ("Think.", "I look.")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == SEARCHED


def test_harmonys_recipient_may_stand_before_the_channel():
    text = ' to=functions.search<|channel|>commentary json<|message|>{"query": "a"}'
    assert said_and_called("harmony", text) == ("", SEARCHED)
    assert said_and_called("harmony", f"<|start|>assistant{text}") == ("", SEARCHED)


def test_harmonys_pieces_stream_and_its_end_marks_are_no_text():
    parser = parser_of("harmony")
    parser.feed("<|channel|>analysis<|message|>")
    assert [
        parser.feed(part) for part in ("A", " b", "<|end|>", "<|start|>assistant<|channel|>final<|message|>", "C")
    ] == [
        [ReasoningPiece("A")],
        [ReasoningPiece(" b")],
        [],
        [],
        [TextPiece("C")],
    ]
    assert parser.feed("<|return|>") + parser.finish() == []


def test_a_harmony_header_that_no_message_follows_is_text():
    assert said_and_called("harmony", "<|channel|>final") == ("<|channel|>final", [])
    long = "<|channel|>" + "x" * 600 + "<|message|>"
    assert said_and_called("harmony", f"{long}y") == ("<|channel|>" + "x" * 600 + "y", [])


@pytest.mark.parametrize(
    ("tool_format", "prefix"),
    [
        ("mistral_args", "[TOOL_CALLS]search[ARGS]"),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>"),  # noqa: RUF001
        ("harmony", "<|channel|>commentary to=functions.search <|constrain|>json<|message|>"),
    ],
)
def test_where_the_name_stands_outside_the_json_one_tool_can_be_forced(tool_format, prefix):
    forced = TOOL_FORMATS[tool_format].forced(TOOLS[:1])
    assert (forced.prefix, json.loads(forced.json_schema)) == (prefix, TOOLS[0].parameters)
    assert said_and_called(tool_format, forced.prefix + '{"query": "a"}') == ("", SEARCHED)
    with pytest.raises(InvalidRequest, match="one tool"):
        TOOL_FORMATS[tool_format].forced(TOOLS)


@pytest.mark.parametrize(
    ("tool_format", "rest"),
    [
        ("hermes", '{"name": "search", "arguments": {"query": "a"}}'),
        ("llama3_json", '{"name": "search", "parameters": {"query": "a"}}'),
        ("mistral", '[{"name": "search", "arguments": {"query": "a"}}]'),
    ],
)
def test_where_the_name_is_in_the_json_any_tool_can_be_forced(tool_format, rest):
    forced = TOOL_FORMATS[tool_format].forced(TOOLS)
    for tool in TOOLS:
        assert f'"const": "{tool.name}"' in forced.json_schema
    assert said_and_called(tool_format, forced.prefix + rest) == ("", SEARCHED)


@pytest.mark.parametrize("tool_format", ["qwen_xml", "glm"])
def test_calls_that_are_written_as_tags_cannot_be_forced(tool_format):
    with pytest.raises(InvalidRequest, match="tool_choice"):
        TOOL_FORMATS[tool_format].forced(TOOLS)


def test_definitions_that_a_schema_refers_to_move_to_the_root():
    point = {"type": "object", "properties": {"next": {"$ref": "#/$defs/P"}}}
    tools = [
        Tool(
            name=name, parameters={"type": "object", "properties": {"at": {"$ref": "#/$defs/P"}}, "$defs": {"P": point}}
        )
        for name in ("a", "b")
    ]
    schema = json.loads(TOOL_FORMATS["hermes"].forced(tools).json_schema)
    assert set(schema["$defs"]) == {"a.P", "b.P"}
    arguments = schema["anyOf"][1]["properties"]["arguments"]
    assert arguments == {"type": "object", "properties": {"at": {"$ref": "#/$defs/b.P"}}}
    assert schema["$defs"]["b.P"]["properties"]["next"] == {"$ref": "#/$defs/b.P"}


@pytest.mark.parametrize(
    ("template", "vocabulary", "name"),
    [
        ("{{ messages }}", "", "hermes"),
        ("<tool_call>", "<|python_tag|>", "hermes"),
        ("{{ tools }}", "<|python_tag|><|eot_id|>", "llama3_json"),
        ("<tool_call>\n<function=", "<tool_call>", "qwen_xml"),
        ("<tool_call><arg_key>", "", "glm"),
        ("[TOOL_CALLS]", "[TOOL_CALLS][ARGS]", "mistral"),
        ("[TOOL_CALLS]x[ARGS]", "", "mistral_args"),
        ("<｜tool▁sep｜>\n```json", "", "deepseek"),  # noqa: RUF001
        ("<｜tool▁sep｜>", "", "deepseek_v31"),  # noqa: RUF001
        ("", "<|start|><|channel|><|message|>", "harmony"),
    ],
)
def test_the_format_is_found_by_the_template_and_else_by_the_vocabulary(template, vocabulary, name):
    assert find_tool_format(template, vocabulary) == name
