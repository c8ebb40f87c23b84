"""How tools, calls and results are written in the prompt and read back from a reply: one class per format.

A format is used where the model's own chat template has no place for tools; `HermesFormat` also reads the replies of
templates that have one, because those models are trained on its tags.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.types import new_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """A reply, split into what is said and what is called."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()


class ToolFormat(Protocol):
    """Laws: `parse` never raises; for every prefix p of a text, the text's parsed content starts with
    `p[:plain_length(p)]`."""

    def write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """The conversation with tools, calls and results written as plain text of system, user and assistant turns."""
        ...

    def plain_length(self, text: str, tools: Sequence[Tool]) -> int:
        """How many characters of a reply that begins with `text` are certainly content, whatever follows."""
        ...

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedResponse:
        """The finished reply's content and calls; a malformed call stays content."""
        ...


_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_BLOCK: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class HermesFormat:
    """JSON objects between `<tool_call>` tags, the format of Hermes and Qwen 2.5."""

    def write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """See `ToolFormat`. The tools are listed at the end of the system message, which is made if there is none."""
        written = [_hermes_message(message) for message in messages]
        written = _merge_results(messages, written)
        if not tools:
            return written
        if written and written[0].role == "system":
            return [replace(written[0], content=written[0].content + "\n\n" + _hermes_tools(tools)), *written[1:]]
        return [Message(role="system", content=_hermes_tools(tools)), *written]

    def plain_length(self, text: str, tools: Sequence[Tool]) -> int:  # noqa: ARG002 - any name counts
        """See `ToolFormat`. White space at the end may belong to a call that follows, so it waits."""
        start = text.find(_OPEN)
        if start < 0:
            start = len(text) - overlap(text, _OPEN)
        return len(text[:start].rstrip())

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedResponse:  # noqa: ARG002 - any name counts
        """See `ToolFormat`. A last block that the model did not close counts if its JSON is whole."""
        calls: list[ToolCall] = []
        kept: list[str] = []
        end = 0
        for block in _BLOCK.finditer(text):
            call = _hermes_call(block[1])
            if call is not None:
                calls.append(call)
                kept.append(text[end : block.start()])
                end = block.end()
        if not calls:
            return ParsedResponse(content=text)
        return ParsedResponse(content="".join([*kept, text[end:]]).rstrip(), tool_calls=tuple(calls))


def _hermes_tools(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(tool_schema(tool), ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{listed}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        f"{_OPEN}{_CLOSE} XML tags:\n"
        f'{_OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{_CLOSE}'
    )


def _hermes_message(message: Message) -> Message:
    if message.role == "tool":
        return Message(role="user", content=f"<tool_response>\n{message.content}\n</tool_response>")
    if not message.tool_calls:
        return message
    blocks = [
        f'{_OPEN}\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}\n{_CLOSE}'
        for call in message.tool_calls
    ]
    return Message(role="assistant", content="\n".join([*([message.content] if message.content else []), *blocks]))


def _merge_results(original: Sequence[Message], written: Sequence[Message]) -> list[Message]:
    # Results of parallel calls form one user turn, as in the template that this format comes from.
    merged: list[Message] = []
    previous_role = ""
    for source, message in zip(original, written, strict=True):
        if source.role == previous_role == "tool":
            merged[-1] = replace(merged[-1], content=f"{merged[-1].content}\n{message.content}")
        else:
            merged.append(message)
        previous_role = source.role
    return merged


def _hermes_call(text: str) -> ToolCall | None:
    try:
        call = json.loads(text, parse_constant=_refuse_constant)
        name, arguments = call["name"], call.get("arguments", {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if not isinstance(name, str) or not isinstance(json.loads(written), dict):
            return None
        (name + written).encode()  # an escaped lone surrogate is valid JSON, but no text that can be sent
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return ToolCall(id=new_id("call"), name=name, arguments=written)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class LineFormat:
    """For very small models: a call is a reply of one line `NAME: ARGUMENT`.

    NAME is an offered tool with one required parameter, a string, which gets ARGUMENT as it is. Tools are not listed
    in the prompt: the environment's system message explains them in words that a small model understands.
    """

    def write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """See `ToolFormat`."""
        return [_line_message(message, tools) for message in messages]

    def plain_length(self, text: str, tools: Sequence[Tool]) -> int:
        """See `ToolFormat`."""
        line = text.strip()
        if "\n" in line:
            return len(text)
        start = text.lstrip()
        heads = [f"{tool.name}: " for tool in tools if _line_parameter(tool)]
        undecided = any(head.startswith(start) or start.startswith(head) for head in heads)
        return 0 if undecided else len(text)

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedResponse:
        """See `ToolFormat`."""
        line = text.strip()
        name, colon, argument = line.partition(": ")
        parameter = next((_line_parameter(tool) for tool in tools if tool.name == name), None)
        if not colon or parameter is None or "\n" in line:
            return ParsedResponse(content=text)
        arguments = json.dumps({parameter: argument}, ensure_ascii=False)
        return ParsedResponse(content="", tool_calls=(ToolCall(id=new_id("call"), name=name, arguments=arguments),))


def _line_parameter(tool: Tool) -> str | None:
    required, properties = tool.parameters.get("required"), tool.parameters.get("properties")
    if not (isinstance(required, list) and len(required) == 1 and isinstance(properties, dict)):
        return None
    schema = properties.get(required[0]) if isinstance(required[0], str) else None
    return required[0] if isinstance(schema, dict) and schema.get("type") == "string" else None


def _line_message(message: Message, tools: Sequence[Tool]) -> Message:
    if message.role == "tool":
        return Message(role="user", content=message.content)
    if not message.tool_calls:
        return message
    parameters = {tool.name: _line_parameter(tool) for tool in tools}
    lines = [f"{call.name}: {_line_argument(call, parameters.get(call.name))}" for call in message.tool_calls]
    return Message(role="assistant", content="\n".join([*([message.content] if message.content else []), *lines]))


def _line_argument(call: ToolCall, parameter: str | None) -> str:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    if not isinstance(arguments, dict):
        return call.arguments
    # Without the tool's schema (a call echoed after its tool was withdrawn) the only argument must be the one.
    value = arguments.get(parameter) if parameter else next(iter(arguments.values()), None)
    return value if isinstance(value, str) else call.arguments


def tool_schema(tool: Tool) -> dict[str, Any]:
    """A tool in OpenAI's shape, which is also what chat templates expect."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning, not the whole, of `mark`."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


TOOL_FORMATS: Final[dict[str, ToolFormat]] = {"hermes": HermesFormat(), "line": LineFormat()}
