import anthropic
import pytest

from stepwell.errors import EngineError, InvalidRequest, RateLimited
from stepwell.gateway.dialects.base import ToolChoice
from stepwell.gateway.dialects.messages import CountTokens, MessagesDialect
from stepwell.gateway.problems import problem_of
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rendering.pieces import TextPiece
from tests.gateway.dialects.driver import answer_of, call_of, parsed, started, streamed
from tests.gateway.dialects.fixtures import MESSAGES

DIALECT = MessagesDialect()
USER = {"role": "user", "content": "Hello"}
SEARCH = {"name": "search", "input_schema": {"type": "object"}}


def test_blocks_become_messages_with_the_results_of_tools_before_what_the_user_says():
    calls = (
        ToolCall(id="call-1", name="search", arguments='{"query":"well"}'),
        ToolCall(id="call-2", name="search", arguments="{}"),
    )
    assert parsed(DIALECT, MESSAGES).messages == (
        Message(role="system", content="Be brief.\nUse tools."),
        Message(role="user", content="How deep?"),
        Message(role="assistant", content="I look.", reasoning="Look.", tool_calls=calls),
        Message(role="tool", content="Error: no query", tool_call_id="call-2"),
        Message(role="tool", content="30 m", tool_call_id="call-1"),
        Message(role="user", content="Hurry."),
        Message(role="system", content="It is late."),
        Message(role="user", content="And now?"),
    )


def test_every_parameter_finds_its_field():
    call = parsed(DIALECT, MESSAGES)
    assert [tool.name for tool in call.tools] == ["search", "run"]
    assert call.tool_choice == ToolChoice(parallel=False)
    assert call.template_options == {"reasoning_effort": "high", "enable_thinking": True}
    assert (call.max_tokens, call.stop, call.top_k, call.temperature) == (32000, ("END",), 40, 1.0)


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_a_system_text_and_a_system_block_are_the_same(system):
    assert call_of(DIALECT, system=system).messages[0] == Message(role="system", content="Be brief.")


@pytest.mark.parametrize(
    ("choice", "tools", "expected"),
    [
        ({"type": "auto"}, 1, ToolChoice()),
        ({"type": "none"}, 0, ToolChoice()),
        ({"type": "any"}, 1, ToolChoice(forced=True)),
        ({"type": "tool", "name": "search"}, 1, ToolChoice(forced=True, name="search")),
        ({"type": "any", "disable_parallel_tool_use": True}, 1, ToolChoice(forced=True, parallel=False)),
    ],
)
def test_tool_choice_says_which_tools_there_are_and_whether_one_must_be_called(choice, tools, expected):
    call = call_of(DIALECT, tools=[SEARCH], tool_choice=choice)
    assert (len(call.tools), call.tool_choice) == (tools, expected)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "dig"}, "tools": [SEARCH]}, "tool_choice.name"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"system": 5}, "system"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [USER, {"role": "assistant", "content": "It is"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages.0.content.0.text"),
        ({"stop_sequences": [5]}, "stop_sequences"),
        ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format.type"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_the_name_of_its_place(options, place):
    with pytest.raises(InvalidRequest) as caught:
        call_of(DIALECT, **options)
    assert caught.value.param == place


def test_a_schema_for_a_title_is_the_mark_of_a_side_call():
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    call = call_of(DIALECT, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert call.titled
    assert call.json_schema == '{"type":"object","properties":{"title":{"type":"string"}}}'


@pytest.mark.parametrize(
    ("end", "stop", "reason", "sequence"),
    [("stop", "", "end_turn", None), ("stop", "END", "stop_sequence", "END"), ("length", "", "max_tokens", None)],
)
def test_the_end_has_the_originals_names(sdks, end, stop, reason, sequence):
    pieces = [TextPiece("hi")]
    answer = answer_of(pieces, end=end, stop=stop)
    sdks.say(DIALECT.answer(call_of(DIALECT), (answer,)))
    whole = sdks.anthropic.messages.create(model="tiny", max_tokens=9, messages=[])
    sdks.say(streamed(DIALECT, call_of(DIALECT), pieces, answer))
    with sdks.anthropic.messages.stream(model="tiny", max_tokens=9, messages=[]) as stream:
        streamed_message = stream.get_final_message()
    for message in (whole, streamed_message):
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 16, 6)


def test_an_error_is_the_sdks_own_before_and_within_a_stream(sdks):
    problem = problem_of(RateLimited("over 10 calls"))
    sdks.say(DIALECT.problem(problem), status=problem.status)
    with pytest.raises(anthropic.RateLimitError, match="over 10 calls"):
        sdks.anthropic.messages.create(model="tiny", max_tokens=9, messages=[])
    writer = DIALECT.writer(call_of(DIALECT))
    sdks.say(writer.start(started()) + writer.error(problem_of(EngineError("it broke"))))
    with pytest.raises(anthropic.APIStatusError, match="it broke"):
        list(sdks.anthropic.messages.create(model="tiny", max_tokens=9, messages=[], stream=True))


def test_tokens_can_be_counted_for_what_could_not_be_answered_yet(sdks):
    counting = CountTokens()
    call = parsed(counting, {"model": "tiny", "messages": [USER, {"role": "assistant", "content": "It is"}]})
    assert [message.role for message in call.messages] == ["user", "assistant"]
    sdks.say(counting.answer(42))
    assert sdks.anthropic.messages.count_tokens(model="tiny", messages=[]).input_tokens == 42
