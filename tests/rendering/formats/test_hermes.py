import json

import pytest

from stepwell.rendering.formats import TOOL_FORMATS
from stepwell.rendering.messages import Message
from stepwell.rendering.pieces import CallArguments, CallClosed
from tests.rendering.replies import TOOLS, parser_of, said_and_called

HERMES = TOOL_FORMATS["hermes"]
BLOCK = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'


@pytest.mark.parametrize(
    "inside",
    [
        *("", "see below", '{"nam', '{"name": 3, "arguments": {}}', '{"arguments": {}}', '["search"]', '"search"'),
        *("[" * 100_000, '{"name": "\\ud800", "arguments": {}}', '{"name": "", "arguments": {}}'),
        '{"arguments": {"query": "x"}',
    ],
)
def test_a_call_that_breaks_before_its_name_is_known_stays_text(inside):
    text = f"<tool_call>{inside}</tool_call>"
    assert said_and_called("hermes", text) == (text, [])


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ('{"name": "search", "arguments": {"query": ', '{"query": '),
        ('{"name": "search", "arguments": {"n": NaN}}', '{"n": NaN}'),
        ('{"name": "search", "arguments": [1]}', "[1]"),
        ('{"name": "search"}', "{}"),
        ('{"name": "search", "arg', ""),
        ('{"name": "search", "arguments": {"query": "line\nbreak"}}', '{"query": "line\nbreak"}'),
    ],
)
def test_a_call_whose_name_is_known_is_a_call_with_whatever_arguments_came(inside, arguments):
    assert said_and_called("hermes", f"<tool_call>{inside}</tool_call>") == ("", [("search", arguments)])


def test_text_behind_a_broken_call_is_text_again():
    text = '<tool_call>{"name": "search", "arguments": {}, ...}</tool_call> Sorry.'
    assert said_and_called("hermes", text) == ("...}</tool_call> Sorry.", [("search", "{}")])


@pytest.mark.parametrize(
    "written",
    [
        '{"arguments": {"query": "a"}, "name": "search"}',
        '{"id": 1, "type": ["x"], "name": "search", "parameters": {"query": "a"}}',
        '{"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}',
        '{"arguments": "{\\"query\\": \\"a\\"}", "name": "search"}',
    ],
)
def test_keys_may_come_in_any_order_and_arguments_as_a_string_of_json(written):
    assert said_and_called("hermes", f"<tool_call>{written}") == ("", [("search", '{"query": "a"}')])


def test_names_that_were_not_offered_are_calls_too():
    assert said_and_called("hermes", BLOCK.replace("search", "find"))[1] == [("find", '{"query": "a"}')]


def test_white_space_around_calls_belongs_to_nothing():
    assert said_and_called("hermes", f"\n One. \n{BLOCK}\n\n{BLOCK}\nTwo.\n") == (
        "\n One.Two.\n",
        [("search", '{"query": "a"}')] * 2,
    )


def test_a_mark_in_a_string_of_the_arguments_is_part_of_it():
    arguments = '{"query": "</tool_call><tool_call>"}'
    text = f'<tool_call>{{"name": "search", "arguments": {arguments}}}</tool_call>'
    assert said_and_called("hermes", text) == ("", [("search", arguments)])


def test_arguments_are_handed_on_as_they_are_sampled():
    parser = parser_of("hermes")
    parser.feed('<tool_call>{"name": "search", "arguments":')
    assert [parser.feed(part) for part in (' {"que', 'ry": "', "a}", '"}', "}")] == [
        [CallArguments('{"que')],
        [CallArguments('ry": "')],
        [CallArguments("a}")],
        [CallArguments('"}')],
        [CallClosed()],
    ]


def test_tools_are_listed_in_the_system_message_and_results_form_one_user_turn():
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


def test_a_system_message_is_made_if_there_is_none():
    written = HERMES.write([Message(role="user", content="hi")], TOOLS)
    assert [message.role for message in written] == ["system", "user"]


def test_a_forced_call_begins_with_the_tag_and_keeps_to_one_of_the_tools():
    forced = HERMES.forced(TOOLS)
    assert forced.prefix == "<tool_call>\n"
    first, second = json.loads(forced.json_schema)["anyOf"]
    assert first["properties"] == {"name": {"const": "search"}, "arguments": TOOLS[0].parameters}
    assert first["required"] == ["name", "arguments"]
    assert second["properties"]["name"] == {"const": "read"}
    assert json.loads(HERMES.forced(TOOLS[:1]).json_schema) == first
