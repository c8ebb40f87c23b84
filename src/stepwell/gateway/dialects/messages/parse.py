"""A message's request, understood."""

from collections.abc import Iterator
from typing import Final

from stepwell.gateway.dialects.base import ChatCall, ToolChoice
from stepwell.gateway.dialects.fields import Fields, compact_json, invalid
from stepwell.gateway.dialects.requests import (
    asks_title,
    block_text,
    chosen,
    limit_of,
    parameters_of,
    refuse,
    sampled,
    schema_asked,
    schema_of,
    seed_of,
    stops,
    text_of,
)
from stepwell.rendering.messages import Message, Tool, ToolCall

_BILLING: Final = "x-anthropic-billing-header"
"""Begins a block that Claude Code puts before its system text. It is no part of the prompt, and its digits change."""
_HARMLESS: Final[dict[str, tuple[object, ...]]] = {"min_p": (0,), "logit_bias": ({},)}


def parse(body: object, raw: bytes) -> ChatCall:
    """Understand a request. Raises InvalidRequest."""
    fields = Fields(body)
    refuse(fields, _HARMLESS)
    tools, choice = _tool_choice(fields, tuple(_tools(fields)))
    messages = (*_system(fields), *_messages(fields))
    if not fields.items("messages"):
        raise invalid(fields.place("messages"), "must hold at least one message")
    output = fields.child("output_config")
    shape = (output.child("format") if output else None) or fields.child("output_format")
    return ChatCall(
        dialect="messages",
        model=fields.name("model"),
        messages=messages,
        tools=tools,
        tool_choice=choice,
        **sampled(fields),
        seed=seed_of(fields),
        max_tokens=limit_of(fields, "max_tokens"),
        stop=stops(fields, "stop_sequences"),
        json_schema=schema_of(shape),
        template_options=_template_options(fields, output),
        stream=fields.flag("stream"),
        include_usage=True,
        titled=asks_title(schema_asked(shape), tools, messages),
        body=raw,
    )


def refuse_begun(call: ChatCall) -> ChatCall:
    """The call itself, if it does not begin the answer by a last assistant message. Raises InvalidRequest."""
    if call.messages[-1].role == "assistant":
        raise invalid("messages", "must not end with an assistant message: to begin the answer is not supported")
    return call


def _tools(fields: Fields) -> Iterator[Tool]:
    # Tools of the server's own have a dated type and no schema: clients list them for servers that have them.
    for tool in fields.children("tools"):
        if tool.text("type") in (None, "custom"):
            yield Tool(
                name=tool.name("name"),
                description=tool.text("description") or "",
                parameters=parameters_of(tool, "input_schema"),
            )


def _tool_choice(fields: Fields, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], ToolChoice]:
    choice = fields.child("tool_choice")
    if choice is None:
        return tools, ToolChoice()
    parallel = not choice.flag("disable_parallel_tool_use")
    match choice.text("type"):
        case "auto":
            return tools, ToolChoice(parallel=parallel)
        case "none":
            return (), ToolChoice()
        case "any":
            return tools, chosen(tools, choice.place("type"), parallel=parallel)
        case "tool":
            return tools, chosen(tools, choice.place("name"), name=choice.name("name"), parallel=parallel)
        case _:
            raise invalid(choice.place("type"), "must be auto, any, tool or none")


def _template_options(fields: Fields, output: Fields | None) -> dict[str, object]:
    options: dict[str, object] = {}
    effort = output.text("effort") if output else None
    if effort:
        options["reasoning_effort"] = effort
    thinking = fields.child("thinking")
    if thinking is not None:
        options["enable_thinking"] = thinking.text("type") != "disabled"
    return {**options, **fields.mapping("chat_template_kwargs")}


def _system(fields: Fields) -> Iterator[Message]:
    value = fields.get("system")
    if isinstance(value, list):
        texts = [block_text(block, f"{fields.place('system')}.{index}") for index, block in enumerate(value)]
    else:
        texts = [text_of(fields, "system")]
    content = "\n".join([text for text in texts if text and not text.startswith(_BILLING)])
    if content:
        yield Message(role="system", content=content)


def _messages(fields: Fields) -> Iterator[Message]:
    for message in fields.children("messages"):
        match message.text("role"):
            case "user":
                yield from _user(message)
            case "assistant":
                yield _assistant(message)
            case "system" | "developer":
                yield Message(role="system", content=text_of(message, "content"))
            case _:
                raise invalid(message.place("role"), "must be user, assistant or system")


def _user(message: Fields) -> Iterator[Message]:
    """Results of tools, each a message, then what the user says."""
    value = message.get("content")
    if not isinstance(value, list):
        yield Message(role="user", content=text_of(message, "content"))
        return
    texts: list[str] = []
    results: list[Message] = []
    for index, block in enumerate(value):
        place = f"{message.place('content')}.{index}"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            results.append(_result(Fields(block, place)))
        else:
            texts.append(block_text(block, place))
    yield from results
    if texts or not results:
        yield Message(role="user", content="\n".join(texts))


def _result(block: Fields) -> Message:
    content = text_of(block, "content")
    if block.flag("is_error") and not content.lower().startswith(("error", "<tool_use_error>")):
        content = f"Error: {content}"
    return Message(role="tool", content=content, tool_call_id=block.text("tool_use_id"))


def _assistant(message: Fields) -> Message:
    if not isinstance(message.get("content"), list):
        return Message(role="assistant", content=text_of(message, "content"))
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, value in enumerate(message.items("content")):
        block = Fields(value, f"{message.place('content')}.{index}")
        match block.text("type"):
            case "thinking":
                thoughts.append(block.text("thinking") or "")
            case "redacted_thinking":
                pass  # of another server: only that one can read it
            case "tool_use":
                arguments = compact_json(block.mapping("input"))
                calls.append(ToolCall(id=block.text("id") or "", name=block.name("name"), arguments=arguments))
            case _:
                texts.append(block_text(value, f"{message.place('content')}.{index}"))
    return Message(role="assistant", content="".join(texts), reasoning="".join(thoughts), tool_calls=tuple(calls))
