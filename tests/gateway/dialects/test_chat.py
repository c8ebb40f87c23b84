import json

import pytest

from stepwell.errors import InvalidRequest
from stepwell.gateway.dialects.base import Delta, Token, ToolChoice
from stepwell.gateway.dialects.chat import ChatDialect
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.pieces import CallArguments, CallClosed, CallOpened, TextPiece
from tests.gateway.dialects.driver import answer_of, call_of, events, parsed, started, streamed
from tests.gateway.dialects.fixtures import CHAT, PARAMETERS, SEARCH

CHATS = ChatDialect()
FETCH = {"type": "function", "function": {"name": "fetch"}}
CALL = [CallOpened("call-1", "search"), CallArguments('{"query":'), CallArguments('"well"}'), CallClosed()]
TOKENS = (
    Token(text="a", data=b"a", logprob=-0.5, top=(Token(text="b", data=b"b", logprob=float("-inf")),)),
    Token(text="\ufffd", data=b"\xc3", logprob=-0.25),
)


def test_messages_of_every_role_and_form_become_the_records_of_the_renderer():
    system, developer, user, calling, first, second, said, last = parsed(CHATS, CHAT).messages
    assert (system, developer) == (
        Message(role="system", content="Be brief."),
        Message(role="system", content="Use tools."),
    )
    assert (user.content, last.content) == ("How deep\nis it?", "And now?")
    calls = (
        ToolCall(id="call-1", name="search", arguments='{"query":"well"}'),
        ToolCall(id="call-2", name="search", arguments='{"query":"step"}'),
    )
    assert calling == Message(role="assistant", reasoning="Look.", tool_calls=calls)
    assert first == Message(role="tool", content="30 m", tool_call_id="call-1")
    assert second == Message(role="tool", content="7 cm", tool_call_id="call-2")
    assert said == Message(role="assistant", content="30 m.")


def test_every_parameter_finds_its_field():
    call = parsed(CHATS, CHAT)
    assert (call.temperature, call.top_p, call.top_k, call.seed) == (0.5, 0.9, 20, 2**63 - 1)
    assert (call.choices, call.stop, call.max_tokens) == (2, ("END",), 300)
    assert (call.logprobs, call.top_logprobs) == (True, 5)
    assert (call.stream, call.include_usage, call.json_schema) == (True, True, '{"type":"object"}')
    assert call.template_options == {"reasoning_effort": "low", "enable_thinking": True}
    assert call.tools == (Tool(name="search", description="Look up.", parameters=PARAMETERS),)
    assert call.tool_choice == ToolChoice(parallel=False)


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_an_absent_a_null_and_an_empty_content_are_the_same(content):
    (message,) = call_of(CHATS, messages=[{"role": "tool", "tool_call_id": "c", **content}]).messages
    assert message == Message(role="tool", content="", tool_call_id="c")


@pytest.mark.parametrize(
    ("choice", "names", "expected"),
    [
        (None, ["search", "fetch"], ToolChoice()),
        ("auto", ["search", "fetch"], ToolChoice()),
        ("none", [], ToolChoice()),
        ("required", ["search", "fetch"], ToolChoice(forced=True)),
        (
            {"type": "function", "function": {"name": "fetch"}},
            ["search", "fetch"],
            ToolChoice(forced=True, name="fetch"),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [FETCH]}},
            ["fetch"],
            ToolChoice(forced=True),
        ),
    ],
)
def test_tool_choice_says_which_tools_there_are_and_whether_one_must_be_called(choice, names, expected):
    call = call_of(CHATS, tools=[SEARCH, FETCH], tool_choice=choice)
    assert ([tool.name for tool in call.tools], call.tool_choice) == (names, expected)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [SEARCH], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [SEARCH], "tool_choice": {"type": "function", "function": {"name": "dig"}}}, "tool_choice.name"),
        ({"tools": [SEARCH], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"min_p": 0.1}, "min_p"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": 7}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"stream": "yes"}, "stream"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, "messages.0"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "tool_calls": [{}]}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages.0.tool_calls.0.function"),
        ({"tools": [{"type": "function", "function": {"parameters": {}}}]}, "tools.0.function.name"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_the_name_of_its_place(options, place):
    with pytest.raises(InvalidRequest) as caught:
        call_of(CHATS, **options)
    assert caught.value.param == place
    assert str(caught.value).startswith(f"{place}: ")


@pytest.mark.parametrize(("form", "schema"), [("text", ""), ("json_object", '{"type":"object"}')])
def test_the_plain_response_formats(form, schema):
    assert call_of(CHATS, response_format={"type": form}).json_schema == schema


def test_a_request_for_a_title_is_recognised_by_its_schema_or_its_system_message():
    shape = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"title": {}}}}}
    asking = [{"role": "system", "content": "You are a title generator. Output one."}, {"role": "user", "content": "x"}]
    assert call_of(CHATS, response_format=shape).titled
    assert call_of(CHATS, messages=asking).titled
    assert not call_of(CHATS, response_format=shape, tools=[SEARCH]).titled
    assert not call_of(CHATS).titled


def test_a_client_that_speaks_of_functions_is_answered_in_functions():
    history = [
        {"role": "user", "content": "How deep?"},
        {"role": "assistant", "content": None, "function_call": {"name": "search", "arguments": "{}"}},
        {"role": "function", "name": "search", "content": "30 m"},
    ]
    call = call_of(CHATS, messages=history, functions=[SEARCH["function"]], function_call={"name": "search"})
    _, calling, result = call.messages
    assert (result.role, result.tool_call_id) == ("tool", calling.tool_calls[0].id)
    assert call.tool_choice == ToolChoice(forced=True, name="search", parallel=False)
    choice = json.loads(CHATS.answer(call, (answer_of(CALL),)))["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "search", "arguments": '{"query":"well"}'}
    deltas = [event["choices"][0]["delta"] for event in events(streamed(CHATS, call, CALL, answer_of(CALL)))[:-1]]
    parts = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert "".join(part["arguments"] for part in parts) == '{"query":"well"}'
    assert parts[0]["name"] == "search"


def test_choices_share_one_stream_which_ends_with_the_last_of_them():
    call = call_of(CHATS, n=2)
    writer = CHATS.writer(call)
    stream = writer.start(started(1)) + writer.start(started(0))
    stream += writer.delta(Delta(choice=1, pieces=(TextPiece("one"),)))
    first_end = writer.end(answer_of([TextPiece("one")], choice=1))
    stream += first_end + writer.delta(Delta(choice=0, pieces=(TextPiece("zero"),)))
    last_end = writer.end(answer_of([TextPiece("zero")], choice=0))
    *chunks, usage = events(stream + last_end)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert texts == {0: "zero", 1: "one"}
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-step-01"}
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (20, 12)
    assert b"[DONE]" not in first_end
    assert last_end.endswith(b"data: [DONE]\n\n")


def test_log_probabilities_are_streamed_with_their_tokens_and_are_whole_in_the_answer():
    call = call_of(CHATS, logprobs=True, top_logprobs=1)
    pieces = [TextPiece("a"), TextPiece("é")]
    answer = answer_of(pieces, tokens=TOKENS)
    whole = json.loads(CHATS.answer(call, (answer,)))["choices"][0]["logprobs"]["content"]
    assert whole == [
        {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [{"token": "b", "logprob": -9999.0, "bytes": [98]}],
        },
        {"token": "\ufffd", "logprob": -0.25, "bytes": [195], "top_logprobs": []},
    ]
    chunks = events(streamed(CHATS, call, pieces, answer, TOKENS))[:-1]
    shown = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [token for logprobs in shown if logprobs for token in logprobs["content"]] == whole


def test_a_token_that_shows_as_nothing_yet_still_shows_its_log_probability():
    writer = CHATS.writer(call_of(CHATS, logprobs=True))
    writer.start(started())
    (chunk,) = events(writer.delta(Delta(tokens=TOKENS[1:])))
    assert chunk["choices"][0]["delta"] == {"content": ""}
    assert chunk["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.25


def test_usage_is_streamed_only_if_asked_for():
    call = call_of(CHATS, stream_options=None)
    stream = streamed(CHATS, call, [TextPiece("hi")], answer_of([TextPiece("hi")]))
    assert b"usage" not in stream
    assert stream.endswith(b"data: [DONE]\n\n")
