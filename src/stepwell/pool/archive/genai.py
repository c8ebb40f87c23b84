"""OpenTelemetry's conventions for generative AI: what the span of a model call says that was asked and answered.

Two generations of them: attributes of the span or of its event `gen_ai.client.inference.operation.details`
(`gen_ai.input.messages` and its like, messages of parts), and the older events, one per message
(`gen_ai.user.message`, `gen_ai.choice`), or one for all (`gen_ai.content.prompt`, `gen_ai.content.completion`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stepwell.pool.archive.conversation import Conversation, conversation_of
from stepwell.pool.archive.otlp import Span
from stepwell.rendering.messages import Message, Role, ToolCall
from stepwell.types import FinishReason

_DETAILS: Final = "gen_ai.client.inference.operation.details"
_ROLE_NAMES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_ROLES: Final = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}


@dataclass(frozen=True, slots=True)
class Told:
    """What a span tells of a call."""

    asked: Conversation
    answer: Message
    finish_reason: FinishReason


def told(span: Span) -> Told | None:
    """The call; None if the span is of none, or its instrumentation left the messages out.

    Raises:
        ValueError: there are messages, but not in the shape of the conventions.
    """
    attributes = dict(span.attributes)
    for name, values in span.events:
        if name == _DETAILS:
            attributes |= values
    try:
        if "gen_ai.output.messages" in attributes:
            return _by_parts(attributes)
        return _by_events(attributes, span.events)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not a message of the conventions: {error!r}") from error


def _by_parts(attributes: Mapping[str, Any]) -> Told:
    system = _json(attributes.get("gen_ai.system_instructions")) or []
    asked = [{"role": "system", "parts": system}] if system else []
    asked += _json(attributes.get("gen_ai.input.messages")) or []
    output = _json(attributes["gen_ai.output.messages"])[0]
    (answer,) = _messages({"role": "assistant", **output})
    return _told([m for shape in asked for m in _messages(shape)], answer, attributes, output.get("finish_reason"))


def _messages(shape: Mapping[str, Any]) -> list[Message]:
    """A message of parts as messages: each tool's response is one of its own."""
    parts = shape["parts"]
    results = [
        Message(role="tool", content=_text(part.get("response", part.get("result"))), tool_call_id=part.get("id"))
        for part in parts
        if part["type"] == "tool_call_response"
    ]
    if results:
        return results
    role = _ROLE_NAMES.get(shape["role"])
    texts, thoughts = _contents(parts, "text"), _contents(parts, "reasoning")
    calls = tuple(_call(part) for part in parts if part["type"] == "tool_call")
    if len(parts) != len(texts) + len(thoughts) + len(calls) or role is None:
        raise ValueError("a message holds other content than text and tool calls, or has an unknown role")
    return [Message(role=role, content="\n".join(texts), reasoning="\n".join(thoughts), tool_calls=calls)]


def _contents(parts: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    return [part["content"] for part in parts if part["type"] == kind]


def _call(part: Mapping[str, Any]) -> ToolCall:
    return ToolCall(id=part.get("id") or "", name=part["name"], arguments=_text(part.get("arguments") or {}))


def _by_events(attributes: Mapping[str, Any], events: Sequence[tuple[str, Mapping[str, Any]]]) -> Told | None:
    asked: list[Any] = []
    answers: list[Any] = []
    finish = None
    for name, values in events:
        body = {**values, **(_json(values.get("gen_ai.event.content")) or {})}
        if name in _ROLES:
            asked.append(_event_message(_ROLES[name], body))
        elif name == "gen_ai.choice":
            finish = finish or body.get("finish_reason")
            answers.append(_event_message("assistant", _json(body.get("message")) or body))
        elif name == "gen_ai.content.prompt":
            asked += _json(values["gen_ai.prompt"])
        elif name == "gen_ai.content.completion":
            answers += _json(values["gen_ai.completion"])
    if not asked or not answers:
        return None
    whole = conversation_of({"messages": [*asked, {**answers[0], "role": "assistant"}]})
    return _told(whole.messages[:-1], whole.messages[-1], attributes, finish)


def _event_message(role: str, body: Mapping[str, Any]) -> dict[str, Any]:
    content = body.get("content")
    text = content if content is None or isinstance(content, str) else _text(content)
    message: dict[str, Any] = {"role": role, "content": text}
    if body.get("tool_calls"):
        calls = _json(body["tool_calls"])
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _text(call["function"].get("arguments") or {})}}
            for call in calls
        ]
    return message | ({"tool_call_id": body.get("id")} if role == "tool" else {})


def _told(asked: Sequence[Message], answer: Message, attributes: Mapping[str, Any], finish: Any) -> Told:
    if not asked:
        raise ValueError("it has an answer, but no message that was answered")
    definitions = _json(attributes.get("gen_ai.tool.definitions")) or []
    shapes = [tool if "function" in tool else {"type": "function", "function": tool} for tool in definitions]
    tools = conversation_of({"messages": [{"role": "user"}], "tools": shapes}).tools
    finish = finish or ([*(_json(attributes.get("gen_ai.response.finish_reasons")) or []), None])[0]
    reason: FinishReason = "length" if finish in ("length", "max_tokens") else "abort" if finish == "error" else "stop"
    return Told(Conversation(tuple(asked), tools), answer, reason)


def _json(value: Any) -> Any:
    """Structured attributes come as structures or, where an exporter knows none, as JSON text."""
    return json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
