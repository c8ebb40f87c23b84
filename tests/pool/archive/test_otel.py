"""Spans as instrumentations write them, in each form that the conventions have had."""

import json
from pathlib import Path

import pytest

from stepwell.errors import InvalidRecord
from stepwell.pool import archive
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.wire import answer_from_json
from stepwell.types import Ids, Record, Step, TrajectoryInfo
from tests.fakes.models import tiny_renderer

RENDERER = tiny_renderer("hermes")
ASKED = [{"role": "user", "parts": [{"type": "text", "content": "Where?"}]}]
BLOB = [{"role": "user", "parts": [{"type": "blob"}]}]
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "There."}], "finish_reason": "stop"}]


def _value(value: object) -> dict:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
        case dict():
            return {"kvlistValue": {"values": _pairs(value)}}
        case _:
            return {"stringValue": value}


def _pairs(values: dict) -> list[dict]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _span(number: int = 1, attributes: dict | None = None, events: list | None = None, trace: str = "ab") -> dict:
    return {
        "traceId": trace,
        "spanId": f"{number:02x}",
        "name": "chat m",
        "startTimeUnixNano": str(number * 10**9),
        "endTimeUnixNano": str(number * 10**9 + 5 * 10**8),
        "attributes": _pairs({"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **(attributes or {})}),
        "events": [{"name": name, "attributes": _pairs(values)} for name, values in events or []],
    }


def _read(tmp_path: Path, *lines: object, **more) -> archive.Reading:
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(_export(line)) for line in lines))
    return archive.read(path, renders=archive.retokenised(RENDERER), **more)


def _export(spans: object) -> dict:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "s"}, "spans": spans}]}]}


def _steps(records: list[Record]) -> list[Step]:
    return [record for record in records if isinstance(record, Step)]


def _parts(**more) -> dict:
    return {"gen_ai.input.messages": json.dumps(ASKED), "gen_ai.output.messages": json.dumps(ANSWER), **more}


MESSAGE_EVENTS = [
    ("gen_ai.user.message", {"content": "Where?"}),
    ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": json.dumps({"content": "There."})}),
]
FORMS = {
    "attributes as text": _span(attributes=_parts()),
    "structured attributes": _span(attributes={"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWER}),
    "event of details": _span(events=[("gen_ai.client.inference.operation.details", _parts())]),
    "event per message": _span(events=MESSAGE_EVENTS),
    "event with its content as text": _span(
        events=[
            ("gen_ai.user.message", {"gen_ai.event.content": json.dumps({"content": "Where?"})}),
            ("gen_ai.choice", {"gen_ai.event.content": json.dumps({"message": {"content": "There."}})}),
        ]
    ),
    "event for all": _span(
        events=[
            ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps([{"role": "user", "content": "Where?"}])}),
            ("gen_ai.content.completion", {"gen_ai.completion": json.dumps([{"content": "There."}])}),
        ]
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_the_conventions_tells_the_call(tmp_path: Path, form: str) -> None:
    info, step = _read(tmp_path, [FORMS[form]])
    assert isinstance(info, TrajectoryInfo)
    assert (info.id, info.source, info.created_at) == ("otel-ab", "import", 1.0)
    assert (step.id, step.model, step.index, step.finish_reason) == ("otel-ab-01", "m", 0, "stop")
    assert (step.created_at, step.latency, step.token_source) == (1.5, 0.5, "text")
    assert json.loads(step.request)["messages"] == [{"role": "user", "content": "Where?"}]
    assert answer_from_json(step.response) == Message(role="assistant", content="There.")
    assert step.prompt_ids.tolist() == RENDERER.render([Message(role="user", content="Where?")]).tolist()


def test_calls_results_reasoning_instructions_and_tools_are_understood(tmp_path: Path) -> None:
    call = {"type": "tool_call", "id": "c", "name": "f", "arguments": {"x": 1}}
    thought = {"type": "reasoning", "content": "hm"}
    result = {"type": "tool_call_response", "id": "c", "response": {"y": 2}}
    attributes = {
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
        "gen_ai.input.messages": json.dumps(
            [*ASKED, {"role": "assistant", "parts": [thought, call]}, {"role": "tool", "parts": [result, result]}]
        ),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [call], "finish_reason": "length"}]),
        "gen_ai.tool.definitions": json.dumps([{"type": "function", "name": "f", "parameters": {"type": "object"}}]),
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.agent.name": "surveyor",
    }
    info, step = _read(tmp_path, [_span(attributes=attributes)])
    body = json.loads(step.request)
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert body["messages"][2]["reasoning_content"] == "hm"
    assert body["messages"][3] == {"role": "tool", "content": '{"y": 2}', "tool_call_id": "c"}
    assert body["tools"][0]["function"]["name"] == "f"
    assert answer_from_json(step.response).tool_calls[0].arguments == '{"x": 1}'
    assert (step.sampling.temperature, step.sampling.seed, step.finish_reason) == (0.5, 7, "length")
    assert info.agent == "surveyor"


def test_older_events_tell_tool_calls_and_their_results_too(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    events = [
        ("gen_ai.user.message", {"content": "Where?"}),
        ("gen_ai.assistant.message", {"tool_calls": json.dumps([call])}),
        ("gen_ai.tool.message", {"id": "c", "content": "There."}),
        ("gen_ai.choice", {"message": {"content": "Found."}}),
    ]
    (step,) = _steps(list(_read(tmp_path, [_span(events=events)])))
    messages = json.loads(step.request)["messages"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert messages[2]["tool_call_id"] == "c"


def test_spans_of_a_conversation_become_one_trajectory_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    named = {"gen_ai.conversation.id": "chat/7"}
    lines = [[_span(3, _parts(**named), trace="b")], [_span(1, _parts(**named)), _span(2, _parts(), trace="c")]]
    records = list(_read(tmp_path, *lines))
    steps = _steps(records)
    conversation = records[0].id
    assert conversation.startswith("otel-")
    assert "/" not in conversation
    assert [(step.id, step.index) for step in steps if step.trajectory_id == conversation] == [
        ("otel-ab-01", 0),
        ("otel-b-03", 1),
    ]
    assert [step.id for step in steps if step.trajectory_id == "otel-c"] == ["otel-c-02"]


def test_reading_twice_gives_the_same_records(tmp_path: Path) -> None:
    spans = [_span(number, _parts()) for number in (1, 2)]
    assert list(_read(tmp_path, spans)) == list(_read(tmp_path, spans))


def test_other_spans_and_calls_without_their_messages_are_passed_over(tmp_path: Path) -> None:
    reading = _read(tmp_path, [_span(attributes={"gen_ai.usage.input_tokens": 3}), _span(2)])
    assert list(reading) == []
    assert reading.flaws.count == 0


@pytest.mark.parametrize(
    ("span", "why"),
    [
        (_span(attributes={**_parts(), "gen_ai.output.messages": "[]"}), "IndexError"),
        (_span(attributes={**_parts(), "gen_ai.output.messages": "[{"}), "Expecting"),
        (_span(attributes={"gen_ai.output.messages": ANSWER}), "no message that was answered"),
        (_span(attributes={**_parts(), "gen_ai.input.messages": BLOB}), "other content"),
        (_span(attributes={**_parts(), "gen_ai.request.temperature": -1.0}), "temperature"),
        ({**_span(attributes=_parts()), "startTimeUnixNano": "soon"}, "invalid literal"),
        ({**_span(), "traceId": 3}, "Expected `str`"),
    ],
)
def test_a_malformed_span_is_skipped_with_its_line_or_fatal(tmp_path: Path, span: dict, why: str) -> None:
    reading = _read(tmp_path, [_span(9, _parts())], [span], on_error="skip")
    assert [step.id for step in _steps(list(reading))] == ["otel-ab-09"]
    (flaw,) = reading.flaws.first
    assert flaw.line == 2
    assert why in flaw.why
    with pytest.raises(InvalidRecord, match="line 2"):
        list(_read(tmp_path, [_span(9, _parts())], [span]))


def test_what_the_renderer_refuses_is_a_flaw(tmp_path: Path) -> None:
    def nothing(messages: list[Message], tools: list[Tool], answer: Message) -> tuple[Ids, Ids]:
        return RENDERER.encode(""), RENDERER.encode("")

    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps(_export([_span(attributes=_parts())])))
    reading = archive.read(path, on_error="skip", renders=nothing)
    assert _steps(list(reading)) == []
    assert "prompt_ids is empty" in str(reading.flaws.first[0])
