"""What was said in a step or a whole trajectory, as chat messages in OpenAI's shape."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.wire import answer_from_json, message_from_json, message_to_json, tool_to_json
from stepwell.types import Step


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and the tools that the policy was offered."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()

    def with_answer(self, answer: Message) -> "Conversation":
        """The same with one more message."""
        return Conversation((*self.messages, answer), self.tools)


Reads = Callable[[Step], Conversation | None]
"""What a step was asked; None if that cannot be told. Whoever knows more dialects than `chat` passes another one."""


def chat_request(step: Step) -> Conversation | None:
    """What a chat completion asked; None for other dialects and for requests that are no messages of text."""
    if step.dialect != "chat":
        return None
    try:
        return conversation_of(json.loads(step.request))
    except (ValueError, RecursionError):
        return None


def said(step: Step, reads: Reads = chat_request) -> Conversation | None:
    """What a step was asked, and what it answered; None if either cannot be told."""
    asked, answer = reads(step), answer_from_json(step.response)
    return asked.with_answer(answer) if asked and answer else None


def conversation_of(body: Any) -> Conversation:
    """The messages and tools of a chat completion's request, or of a line of a fine-tuning file.

    Raises:
        ValueError: it is no such thing, or holds other content than text.
    """
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise ValueError("there are no messages")
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise ValueError("its tools are no list")
    return Conversation(tuple(map(_message, body["messages"])), tuple(map(_tool, tools)))


def _message(shape: Any) -> Message:
    if not isinstance(shape, dict):
        raise ValueError("a message is no object")
    role = "system" if shape.get("role") == "developer" else shape.get("role")
    return message_from_json({**shape, "role": role, "content": _text(shape.get("content"))})


def _text(content: Any) -> Any:
    """Parts of text as one text; anything else as it is."""
    if not isinstance(content, list):
        return content
    parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    if len(texts) < len(content):
        raise ValueError("a message holds other content than text")
    return "\n".join(texts)


def _tool(shape: Any) -> Tool:
    try:
        function = shape["function"]
        parameters = function.get("parameters") or {}
        tool = Tool(name=function["name"], description=function.get("description") or "", parameters=parameters)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a function tool: {error}") from error
    if not (isinstance(tool.name, str) and isinstance(tool.description, str) and isinstance(parameters, dict)):
        raise ValueError("not a function tool: a field has the wrong type")
    return tool


class FunctionRow(msgspec.Struct, frozen=True, kw_only=True):
    """The function that a call is of."""

    name: str
    arguments: str
    """JSON text, as it was sampled."""


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call."""

    id: str
    type: str
    function: FunctionRow


class MessageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat message."""

    role: str
    content: str
    reasoning_content: str | None = None
    tool_calls: list[CallRow] | None = None
    tool_call_id: str | None = None


def message_rows(messages: Sequence[Message]) -> list[MessageRow]:
    """Messages as rows hold them."""
    return msgspec.convert([message_to_json(message) for message in messages], list[MessageRow])


def tool_rows(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Tools as clients declare them; None if there are none."""
    return [tool_to_json(tool) for tool in tools] or None


def writable(conversation: Conversation) -> bool:
    """Whether all its texts are Unicode; agents do produce lone surrogates, which no file format takes."""
    try:
        msgspec.json.encode([message_rows(conversation.messages), tool_rows(conversation.tools)])
    except UnicodeEncodeError:
        return False
    return True
