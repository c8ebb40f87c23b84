"""For very small models: a call is a reply of one line `NAME: ARGUMENT`.

NAME is an offered tool with one required parameter, a string, which gets ARGUMENT as it is. Tools are not listed in the
prompt: the environment's system message explains them in words that a small model understands.
"""

import json
from collections.abc import Sequence

from stepwell.rendering.formats.base import ToolFormat
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.source import NO_MARKS, Reading, Source


class LineFormat(ToolFormat):
    """See the module."""

    name = "line"
    native = False

    def write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """See `ToolFormat`."""
        return [self._written(message, tools) for message in messages]

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:
        """See `ToolFormat`. Of several calls only the first can be read back, since a reply of two lines is text."""
        parameters = {tool.name: _parameter(tool) for tool in tools}
        return "\n".join(f"{call.name}: {_argument(call, parameters.get(call.name))}" for call in calls)

    def read(self, source: Source, tools: Sequence[Tool]) -> Reading[None]:
        """See `ToolFormat`. That a reply is one line is certain at its end only, so a possible call is held back."""
        parameters = {tool.name: parameter for tool in tools if (parameter := _parameter(tool))}
        if parameters:
            yield from source.skip_space()
            head = yield from source.accept(*(f"{name}: " for name in parameters))
            argument = (yield from _read_line(source)) if head else ""
            if argument:
                name = head.removesuffix(": ")
                source.open_call(name)
                source.argue(json.dumps({parameters[name]: argument}, ensure_ascii=False))
                source.close_call()
        source.refuse()
        yield from source.prose(NO_MARKS)

    def _written(self, message: Message, tools: Sequence[Tool]) -> Message:
        if message.role == "tool":
            return Message(role="user", content=message.content)
        if not message.tool_calls:
            return message
        parts = filter(None, [message.content, self.write_calls(message.tool_calls, tools)])
        return Message(role="assistant", content="\n".join(parts))


def _read_line(source: Source) -> Reading[str]:
    """The rest of the reply, read, if it is one line that is not empty; else nothing is read."""
    while True:
        line = source.text[source.at :].rstrip()
        if "\n" in line:
            return ""
        if not (yield from source.more()):
            source.at = len(source.text) if line else source.at
            return line


def _parameter(tool: Tool) -> str | None:
    required, properties = tool.parameters.get("required"), tool.parameters.get("properties")
    if not (isinstance(required, list) and len(required) == 1 and isinstance(properties, dict)):
        return None
    schema = properties.get(required[0]) if isinstance(required[0], str) else None
    return required[0] if isinstance(schema, dict) and schema.get("type") == "string" else None


def _argument(call: ToolCall, parameter: str | None) -> str:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    if not isinstance(arguments, dict):
        return call.arguments
    # Without the tool's schema (a call echoed after its tool was withdrawn) the only argument must be the one.
    value = arguments.get(parameter) if parameter else next(iter(arguments.values()), None)
    return value if isinstance(value, str) else call.arguments
