import json

import pytest

from stepwell.errors import EngineError, InvalidRequest
from stepwell.gateway.dialects.base import Token, ToolChoice
from stepwell.gateway.dialects.responses import ResponsesDialect
from stepwell.gateway.problems import problem_of
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rendering.pieces import CallArguments, CallClosed, CallOpened, ReasoningPiece, TextPiece
from tests.gateway.dialects.driver import answer_of, call_of, events, parsed, started, streamed
from tests.gateway.dialects.fixtures import FLAT_SEARCH, RESPONSES

DIALECT = ResponsesDialect()
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "30 m."}]}


def test_items_become_the_messages_of_the_turns_that_they_were_part_of():
    calls = (
        ToolCall(id="call-1", name="search", arguments='{"query":"well"}'),
        ToolCall(id="call-2", name="agents__spawn", arguments="{}"),
    )
    assert parsed(DIALECT, RESPONSES).messages == (
        Message(role="system", content="Be brief."),
        Message(role="system", content="Use tools."),
        Message(role="user", content="How deep?"),
        Message(role="assistant", reasoning="Look.", tool_calls=calls),
        Message(role="tool", content="30 m", tool_call_id="call-1"),
        Message(role="tool", content="done", tool_call_id="call-2"),
        Message(role="assistant", content="30 m."),
        Message(role="user", content="And now?"),
    )


def test_every_parameter_finds_its_field():
    call = parsed(DIALECT, RESPONSES)
    assert (call.max_tokens, call.logprobs, call.top_logprobs) == (64000, True, 1)
    assert call.template_options == {"reasoning_effort": "medium"}
    assert [tool.name for tool in call.tools] == ["search", "agents__spawn"]
    assert call.tool_choice == ToolChoice()


def test_two_messages_in_a_row_are_two_turns_unless_their_ids_name_one_step():
    assert len(call_of(DIALECT, input=[SAID, SAID]).messages) == 2
    same = [{**SAID, "id": "msg_step-1"}, {**SAID, "id": "msg_step-1_1"}]
    assert [message.content for message in call_of(DIALECT, input=same).messages] == ["30 m.30 m."]
    other = [{**SAID, "id": "msg_step-1"}, {"type": "reasoning", "id": "rs_step-2", "summary": []}]
    assert len(call_of(DIALECT, input=other).messages) == 2


def test_references_to_a_steps_items_stand_for_its_answer():
    call = call_of(
        DIALECT,
        input=[
            {"role": "user", "content": "How deep?"},
            {"type": "item_reference", "id": "rs_step-1"},
            {"id": "fc_step-1_0"},
            {"type": "function_call", "call_id": "call-2", "name": "search", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call-2", "output": "30 m"},
            {"type": "item_reference", "id": "msg_step-2"},
            {"role": "user", "content": "And now?"},
        ],
    )
    assert call.recalled == ((1, "step-1"), (3, "step-2"))
    assert [message.role for message in call.messages] == ["user", "assistant", "tool", "assistant", "user"]


def test_a_response_can_be_gone_on_from_by_its_id():
    body = {"model": "tiny", "previous_response_id": "resp_step-1", "input": []}
    assert (parsed(DIALECT, body).previous_id, parsed(DIALECT, body).messages) == ("step-1", ())


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ["Hello"]}, "input.0"),
        ({"input": [{"type": "message", "role": "robot"}]}, "input.0.role"),
        ({"input": [{"type": "compaction"}]}, "input.0.type"),
        ({"input": [{"type": "item_reference", "id": "elsewhere"}]}, "input.0.id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"previous_response_id": "elsewhere"}, "previous_response_id"),
        ({"tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]}, "tool_choice.type"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_the_name_of_its_place(options, place):
    with pytest.raises(InvalidRequest) as caught:
        call_of(DIALECT, **options)
    assert caught.value.param == place


def test_tools_may_be_forced_by_name_and_narrowed():
    tools = [FLAT_SEARCH, {"type": "function", "name": "fetch"}]
    named = call_of(DIALECT, tools=tools, tool_choice={"type": "function", "name": "fetch"})
    assert named.tool_choice == ToolChoice(forced=True, name="fetch")
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "fetch"}]}
    assert [tool.name for tool in call_of(DIALECT, tools=tools, tool_choice=allowed).tools] == ["fetch"]


def test_a_call_of_a_namespaced_tool_is_answered_in_its_namespace():
    call = parsed(DIALECT, RESPONSES)
    pieces = [CallOpened("call-9", "agents__spawn"), CallArguments("{}"), CallClosed()]
    (item,) = json.loads(DIALECT.answer(call, (answer_of(pieces),)))["output"]
    assert (item["namespace"], item["name"]) == ("agents", "spawn")


def test_the_answer_repeats_what_was_asked():
    call = call_of(DIALECT, instructions="Be brief.", tools=[FLAT_SEARCH], temperature=0.5, metadata={"run": "7"})
    shape = json.loads(DIALECT.answer(call, (answer_of([TextPiece("hi")]),)))
    assert (shape["instructions"], shape["temperature"], shape["metadata"]) == ("Be brief.", 0.5, {"run": "7"})
    assert (shape["tools"], shape["tool_choice"], shape["store"]) == ([FLAT_SEARCH], "auto", True)
    assert shape["usage"]["input_tokens_details"] == {"cached_tokens": 16}
    assert shape["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


@pytest.mark.parametrize(("summary", "parts"), [("auto", "summary"), (None, "content")])
def test_reasoning_is_shown_as_a_summary_to_those_who_ask_for_one(sdks, summary, parts):
    call = call_of(DIALECT, reasoning={"summary": summary})
    pieces = [ReasoningPiece("Hm"), ReasoningPiece("m."), TextPiece("Yes.")]
    found = events(streamed(DIALECT, call, pieces, answer_of(pieces)))
    name = "response.reasoning_summary_text.delta" if summary else "response.reasoning_text.delta"
    assert [event["delta"] for event in found if event["type"] == name] == ["Hm", "m."]
    assert [part["text"] for part in found[-1]["response"]["output"][0][parts]] == ["Hmm."]


def test_an_answer_cut_by_its_limit_is_incomplete(sdks):
    pieces = [TextPiece("It is")]
    answer = answer_of(pieces, end="length")
    last = events(streamed(DIALECT, call_of(DIALECT), pieces, answer))[-1]
    whole = json.loads(DIALECT.answer(call_of(DIALECT), (answer,)))
    assert last["type"] == "response.incomplete"
    assert {**last["response"], "created_at": 0} == {**whole, "created_at": 0}
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["output"][0]["status"] == "incomplete"


def test_an_empty_answer_is_an_empty_message():
    found = events(streamed(DIALECT, call_of(DIALECT), [], answer_of([])))
    whole = json.loads(DIALECT.answer(call_of(DIALECT), (answer_of([]),)))
    assert found[-1]["response"]["output"] == whole["output"]
    assert whole["output"][0]["content"][0]["text"] == ""


def test_tokens_are_shown_with_the_text_that_follows_them():
    call = call_of(DIALECT, top_logprobs=2)
    tokens = tuple(Token(text=text, data=text.encode(), logprob=-1.0) for text in "abc")
    pieces = [ReasoningPiece("a"), TextPiece("b"), TextPiece("c")]
    answer = answer_of(pieces, tokens=tokens)
    found = events(streamed(DIALECT, call, pieces, answer, tokens))
    deltas = [event["logprobs"] for event in found if event["type"] == "response.output_text.delta"]
    assert [[token["token"] for token in shown] for shown in deltas] == [["a", "b"], ["c"]]
    whole = json.loads(DIALECT.answer(call, (answer,)))
    assert found[-1]["response"]["output"] == whole["output"]


def test_a_failure_ends_the_stream_with_the_reason_and_what_was_done():
    writer = DIALECT.writer(call_of(DIALECT))
    last = events(writer.start(started()) + writer.error(problem_of(EngineError("it broke"))))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "engine_error", "message": "it broke"}
