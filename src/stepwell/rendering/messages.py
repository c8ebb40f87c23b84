"""Chat messages and tools as typed records: dialects parse wire formats into them, renderers make token ids of them."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool, as the policy asked for it."""

    id: str
    """Unique in the conversation; the tool's answer refers to it."""
    name: str
    arguments: str
    """JSON text of the arguments. From a renderer always valid; as a client echoes it, possibly not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only for role `assistant`."""
    tool_call_id: str | None = None
    """Only for role `tool`: which call this answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the policy may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON Schema of the arguments, an object schema."""


def answer_to_json(answer: Message) -> str:
    """An assistant message as compact JSON in OpenAI's shape: what `Step.response` holds."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.tool_calls
    ]
    shape: dict[str, object] = {"role": "assistant", "content": answer.content or (None if calls else "")}
    if calls:
        shape["tool_calls"] = calls
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":"))


def answer_from_json(text: str) -> Message | None:
    """The assistant message that `answer_to_json` wrote; None for anything else, such as an imported step's text."""
    try:
        shape = json.loads(text)
        calls = [
            ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in shape.get("tool_calls", ())
        ]
        return Message(role="assistant", content=shape["content"] or "", tool_calls=tuple(calls))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
