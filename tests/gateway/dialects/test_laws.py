"""Laws of every dialect, held against the real SDKs."""

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.errors import InvalidRequest
from stepwell.gateway.dialects import DIALECTS
from stepwell.gateway.dialects.base import Delta
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rendering.pieces import CallArguments, CallClosed, CallOpened, ReasoningPiece, TextPiece, message_of
from tests.gateway.dialects.driver import BODIES, answer_of, call_of, events, parsed, started, streamed
from tests.gateway.dialects.fixtures import RICH
from tests.gateway.dialects.strategies import json_values, replies, spoilt, texts

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
CHATTY = [BY_NAME[name] for name in ("chat", "responses", "messages")]
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
each = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
each_chatty = pytest.mark.parametrize("dialect", CHATTY, ids=lambda dialect: dialect.name)


def _loaded(message: Message) -> tuple:
    """A message with its arguments as values, which is what some APIs carry."""
    calls = [(call.id, call.name, json.loads(call.arguments)) for call in message.tool_calls]
    return message.reasoning, message.content, calls


def _from_chat(completion) -> Message:
    message = completion.choices[0].message
    calls = [ToolCall(id=c.id, name=c.function.name, arguments=c.function.arguments) for c in message.tool_calls or ()]
    reasoning = (message.model_extra or {}).get("reasoning_content", "")
    return Message(role="assistant", content=message.content or "", reasoning=reasoning, tool_calls=tuple(calls))


def _from_responses(response) -> Message:
    items = {kind: [i for i in response.output if i.type == kind] for kind in ("reasoning", "message", "function_call")}
    calls = [ToolCall(id=i.call_id, name=i.name, arguments=i.arguments) for i in items["function_call"]]
    return Message(
        role="assistant",
        content=response.output_text,
        reasoning="".join(part.text for item in items["reasoning"] for part in item.content),
        tool_calls=tuple(calls),
    )


def _from_messages(message) -> Message:
    calls = [
        ToolCall(id=b.id, name=b.name, arguments=json.dumps(b.input)) for b in message.content if b.type == "tool_use"
    ]
    return Message(
        role="assistant",
        content="".join(block.text for block in message.content if block.type == "text"),
        reasoning="".join(block.thinking for block in message.content if block.type == "thinking"),
        tool_calls=tuple(calls),
    )


def _read_stream(sdks, name: str) -> Message:
    match name:
        case "chat":
            with sdks.openai.chat.completions.stream(model="tiny", messages=[]) as stream:
                return _from_chat(stream.get_final_completion())
        case "responses":
            with sdks.openai.responses.stream(model="tiny", input="Hello") as stream:
                return _from_responses(stream.get_final_response())
        case _:
            with sdks.anthropic.messages.stream(model="tiny", max_tokens=9, messages=[]) as stream:
                return _from_messages(stream.get_final_message())


def _read_whole(sdks, name: str) -> Message:
    match name:
        case "chat":
            return _from_chat(sdks.openai.chat.completions.create(model="tiny", messages=[]))
        case "responses":
            return _from_responses(sdks.openai.responses.create(model="tiny", input="Hello"))
        case _:
            return _from_messages(sdks.anthropic.messages.create(model="tiny", max_tokens=9, messages=[]))


@each_chatty
@few
@given(pieces=replies())
def test_a_stream_and_a_whole_answer_are_read_as_the_message_that_the_pieces_add_up_to(sdks, dialect, pieces):
    call, answer = call_of(dialect), answer_of(pieces)
    sdks.say(streamed(dialect, call, pieces, answer))
    from_stream = _read_stream(sdks, dialect.name)
    sdks.say(dialect.answer(call, (answer,)))
    from_whole = _read_whole(sdks, dialect.name)
    assert _loaded(from_stream) == _loaded(from_whole) == _loaded(message_of(pieces))


def _echo(dialect, answer) -> dict:
    """The next request of a client that sends our answer back as it came."""
    body = {"model": "tiny", **BODIES[dialect.name]}
    shape = json.loads(dialect.answer(call_of(dialect), (answer,)))
    user = {"role": "user", "content": "Go on."}
    match dialect.name:
        case "chat":
            return {**body, "messages": [*body["messages"], shape["choices"][0]["message"], user]}
        case "responses":
            return {**body, "input": [{"role": "user", "content": "Hello"}, *shape["output"], user]}
        case _:
            echo = {"role": "assistant", "content": shape["content"]}
            return {**body, "messages": [*body["messages"], echo, user]}


@each_chatty
@given(pieces=replies())
def test_an_answer_that_is_sent_back_is_read_as_the_message_that_it_was(dialect, pieces):
    answer = answer_of(pieces)
    before, echo, after = parsed(dialect, _echo(dialect, answer)).messages
    assert (before.content, after.content) == ("Hello", "Go on.")
    assert (echo.role, *_loaded(echo)) == ("assistant", *_loaded(answer.message))


@given(pieces=replies())
def test_streamed_items_that_are_sent_back_are_one_message_again(pieces):
    dialect = BY_NAME["responses"]
    *_, last = events(streamed(dialect, call_of(dialect), pieces, answer_of(pieces)))
    body = {"model": "tiny", "input": [*last["response"]["output"], {"role": "user", "content": "Go on."}]}
    echo, _ = parsed(dialect, body).messages
    assert echo == message_of(pieces)


@given(pieces=replies())
def test_reasoning_survives_clients_that_keep_only_its_encrypted_form(pieces):
    dialect = BY_NAME["responses"]
    call = call_of(dialect, include=["reasoning.encrypted_content"], reasoning={"summary": "auto"})
    output = json.loads(dialect.answer(call, (answer_of(pieces),)))["output"]
    bare = [{**item, "summary": []} if item["type"] == "reasoning" else item for item in output]
    (echo,) = parsed(dialect, {"model": "tiny", "input": bare}).messages
    assert echo == message_of(pieces)


any_piece = (
    texts.map(TextPiece)
    | texts.map(ReasoningPiece)
    | texts.map(CallArguments)
    | st.builds(CallOpened, texts, texts)
    | st.just(CallClosed())
)


def _check_chat(found: list[dict]) -> None:
    *chunks, usage = found
    assert [bool(chunk["choices"][0]["finish_reason"]) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert usage["usage"]["total_tokens"] == 26


def _check_responses(found: list[dict]) -> None:
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    opened = [event["output_index"] for event in found if event["type"] == "response.output_item.added"]
    done = [event["output_index"] for event in found if event["type"] == "response.output_item.done"]
    assert opened == done == list(range(len(found[-1]["response"]["output"])))
    ids = [item["id"] for item in found[-1]["response"]["output"]]
    assert len(set(ids)) == len(ids)


def _check_messages(found: list[dict]) -> None:
    current, blocks = None, 0
    for event in found[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert (current, event["index"]) == (None, blocks)
                current, blocks = blocks, blocks + 1
            case "content_block_stop":
                assert event["index"] == current
                current = None
            case kind:
                assert (kind, event["index"]) == ("content_block_delta", current)
    assert current is None
    assert [event["type"] for event in found[-2:]] == ["message_delta", "message_stop"]


CHECKS = {
    "chat": _check_chat,
    "completions": _check_chat,
    "responses": _check_responses,
    "messages": _check_messages,
}


@each
@given(deltas=st.lists(st.lists(any_piece, max_size=3), max_size=6))
def test_every_stream_is_well_formed_whatever_the_pieces(dialect, deltas):
    writer = dialect.writer(call_of(dialect))
    parts = [writer.start(started()), *(writer.delta(Delta(pieces=tuple(pieces))) for pieces in deltas)]
    CHECKS[dialect.name](events(b"".join([*parts, writer.end(answer_of([]))])))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in inner:
        yield from _strings(child)


@each
@given(text=texts.filter(bool), pieces=replies())
def test_each_piece_of_text_is_sent_at_once(dialect, text, pieces):
    writer = dialect.writer(call_of(dialect))
    writer.start(started())
    writer.delta(Delta(pieces=tuple(pieces)))
    assert text in _strings(events(writer.delta(Delta(pieces=(TextPiece(text),)))))


@each
def test_a_body_with_everything_in_it_is_understood(dialect):
    call = parsed(dialect, RICH[dialect.name])
    assert (call.dialect, call.model, call.stream) == (dialect.name, "tiny", True)
    assert json.loads(call.body) == RICH[dialect.name]


@each
@given(data=st.data())
def test_parsing_raises_nothing_but_invalid_request(dialect, data):
    body = data.draw(spoilt(RICH[dialect.name]) | json_values)
    with suppress(InvalidRequest):
        assert parsed(dialect, body).dialect == dialect.name


@each
@given(data=st.data())
def test_null_is_a_missing_field(dialect, data):
    name = data.draw(st.sampled_from(sorted(set(RICH[dialect.name]) - {"model", "messages", "prompt", "input"})))
    body = {**RICH[dialect.name], "top_logprobs": None}
    dropped = {key: value for key, value in body.items() if key != name}
    assert dialect.parse({**body, name: None}, b"") == dialect.parse(dropped, b"")
