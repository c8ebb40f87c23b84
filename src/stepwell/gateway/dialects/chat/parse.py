"""A chat completion's request, understood."""

from typing import Final

from stepwell.gateway.dialects.base import ChatCall, ToolChoice
from stepwell.gateway.dialects.fields import Fields, invalid
from stepwell.gateway.dialects.openai import HARMLESS, echoed_call, offered, tool_choice
from stepwell.gateway.dialects.requests import (
    asks_title,
    chosen,
    limit_of,
    refuse,
    sampled,
    schema_asked,
    schema_of,
    seed_of,
    stops,
    text_of,
)
from stepwell.rendering.messages import Message, Tool, ToolCall

LEGACY: Final = "functions"
"""`ChatCall.kept` of a client that speaks of functions instead of tools, and must be answered so."""

_HARMLESS: Final = {**HARMLESS, "modalities": (["text"],), "audio": ()}
_MOST_CHOICES: Final = 128
_MOST_LOGPROBS: Final = 20


def parse(body: object, raw: bytes) -> ChatCall:
    """Understand a request. Raises InvalidRequest."""
    fields = Fields(body)
    refuse(fields, _HARMLESS)
    legacy = fields.has("functions")
    tools, choice = _legacy_tools(fields) if legacy else _tools(fields)
    messages = _messages(fields)
    shape = fields.child("response_format")
    options = fields.child("stream_options")
    logprobs, top_logprobs = _logprobs(fields)
    return ChatCall(
        dialect="chat",
        model=fields.name("model"),
        messages=messages,
        tools=tools,
        tool_choice=choice,
        **sampled(fields),
        seed=seed_of(fields),
        max_tokens=limit_of(fields, "max_completion_tokens", "max_tokens"),
        stop=stops(fields, "stop"),
        json_schema=schema_of(shape),
        template_options=_template_options(fields),
        choices=fields.integer("n", 1, _MOST_CHOICES) or 1,
        stream=fields.flag("stream"),
        include_usage=options is not None and options.flag("include_usage"),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        titled=asks_title(schema_asked(shape), tools, messages),
        body=raw,
        kept=LEGACY if legacy else None,
    )


def _tools(fields: Fields) -> tuple[tuple[Tool, ...], ToolChoice]:
    return tool_choice(fields, tuple(tool for _, tool in offered(fields.children("tools"))))


def _legacy_tools(fields: Fields) -> tuple[tuple[Tool, ...], ToolChoice]:
    tools = tuple(tool for _, tool in offered(fields.children("functions")))
    value = fields.get("function_call")
    if isinstance(value, dict):
        name = Fields(value, fields.place("function_call")).name("name")
        return tools, chosen(tools, fields.place("function_call"), name=name, parallel=False)
    match fields.text("function_call"):
        case None | "auto":
            return tools, ToolChoice(parallel=False)
        case "none":
            return (), ToolChoice()
        case other:
            raise invalid(fields.place("function_call"), f"must be none, auto or an object, got {other!r}")


def _logprobs(fields: Fields) -> tuple[bool, int]:
    logprobs, top = fields.flag("logprobs"), fields.integer("top_logprobs", 0, _MOST_LOGPROBS) or 0
    if top and not logprobs:
        raise invalid(fields.place("top_logprobs"), "needs logprobs to be true")
    return logprobs, top


def _template_options(fields: Fields) -> dict[str, object]:
    options: dict[str, object] = {}
    effort = fields.text("reasoning_effort")
    if effort:
        options["reasoning_effort"] = effort
    if effort == "none":
        options["enable_thinking"] = False
    return {**options, **fields.mapping("chat_template_kwargs")}


def _messages(fields: Fields) -> tuple[Message, ...]:
    messages = tuple(_message(message, index) for index, message in enumerate(fields.children("messages")))
    if not messages:
        raise invalid(fields.place("messages"), "must hold at least one message")
    return messages


def _message(message: Fields, index: int) -> Message:
    role = message.text("role")
    if role != "assistant" and message.items("tool_calls"):
        raise invalid(message.place("tool_calls"), "only an assistant message has tool calls")
    match role:
        case "assistant":
            return _assistant(message, index)
        case "user":
            return Message(role="user", content=text_of(message, "content"))
        case "system" | "developer":
            return Message(role="system", content=text_of(message, "content"))
        case "tool":
            return Message(role="tool", content=text_of(message, "content"), tool_call_id=message.text("tool_call_id"))
        case "function":
            return Message(role="tool", content=text_of(message, "content"), tool_call_id=_legacy_id(index - 1))
        case _:
            raise invalid(message.place("role"), "must be system, developer, user, assistant or tool")


def _assistant(message: Fields, index: int) -> Message:
    calls = [_call(call) for call in message.children("tool_calls")]
    function = message.child("function_call")
    if function is not None:
        calls.append(echoed_call(_legacy_id(index), function))
    return Message(
        role="assistant",
        content=text_of(message, "content", between=""),
        reasoning=message.text("reasoning_content") or text_of(message, "reasoning", between=""),
        tool_calls=tuple(calls),
    )


def _call(call: Fields) -> ToolCall:
    function = call.child("function")
    if function is None:
        raise invalid(call.place("function"), "is required: only calls of functions can be continued")
    return echoed_call(call.text("id") or "", function)


def _legacy_id(index: int) -> str:
    # The older form has no ids: an answer belongs to the call of the message just before it.
    return f"call_{index}"
