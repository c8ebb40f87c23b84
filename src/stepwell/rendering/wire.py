"""OpenAI's shapes of messages and tools, in one place: chat templates, stored answers and clients all speak them.

Dialects read what clients send by themselves, since they must say what is wrong with it.
"""

import json
from typing import Any

from stepwell.rendering.messages import Message, Tool, ToolCall


def tool_to_json(tool: Tool) -> dict[str, Any]:
    """A tool as clients declare it, which is also what chat templates expect."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def call_to_json(call: ToolCall) -> dict[str, Any]:
    """A call; its arguments stay the JSON text that they are."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def message_to_json(message: Message) -> dict[str, Any]:
    """A message; keys for what it does not have are left out, except `content`, which is then empty."""
    shape: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        shape["reasoning_content"] = message.reasoning
    if message.tool_calls:
        shape["tool_calls"] = [call_to_json(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        shape["tool_call_id"] = message.tool_call_id
    return shape


def message_from_json(shape: Any) -> Message:
    """What `message_to_json` wrote, or a server answered.

    Raises:
        ValueError: it is no message whose content is text.
    """
    try:
        return Message(
            role=_one_of_roles(shape["role"]),
            content=_text(shape.get("content")),
            reasoning=_text(shape.get("reasoning_content")),
            tool_calls=tuple(_call_from_json(call) for call in shape.get("tool_calls") or ()),
            tool_call_id=shape.get("tool_call_id"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a chat message: {error}") from error


def answer_to_json(answer: Message) -> str:
    """An assistant message as compact JSON: what `Step.response` holds."""
    shape = message_to_json(answer)
    if answer.tool_calls and not answer.content:
        shape["content"] = None
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":"))


def answer_from_json(text: str) -> Message | None:
    """The assistant message that `answer_to_json` wrote; None for anything else, such as an imported step's text."""
    try:
        answer = message_from_json(json.loads(text))
    except (ValueError, RecursionError):
        return None
    return answer if answer.role == "assistant" else None


def displayed(shape: Any) -> str:
    """What a stored message says and calls, for people to read; whatever is no message is shown as JSON."""
    if not isinstance(shape, dict):
        return _displayed_content(shape)
    calls = shape.get("tool_calls")
    shown = map(_displayed_call, calls if isinstance(calls, list) else [])
    return "\n".join(filter(None, [_displayed_content(shape.get("content")), *shown]))


def _displayed_content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    texts = (part.get("text") if isinstance(part, dict) else None for part in content)
    return "\n".join(
        text if isinstance(text, str) else json.dumps(part, ensure_ascii=False)
        for text, part in zip(texts, content, strict=True)
    )


def _displayed_call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return json.dumps(call, ensure_ascii=False)
    return f"→ {function.get('name')}({_displayed_content(function.get('arguments'))})"


def _one_of_roles(role: Any) -> Any:
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"not a chat message: role {role!r}")
    return role


def _text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise ValueError("not a chat message: its content is not text")
    return value or ""


def _call_from_json(shape: Any) -> ToolCall:
    function = shape["function"]
    return ToolCall(id=_text(shape["id"]), name=_text(function["name"]), arguments=_text(function["arguments"]))
