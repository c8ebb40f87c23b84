"""Keys and values between tags, as GLM 4.5 and later write them: `<tool_call>NAME<arg_key>…</arg_key><arg_value>…`."""

from collections.abc import Sequence
from typing import Final

from stepwell.rendering.formats.base import ToolFormat
from stepwell.rendering.formats.typed import TypedArguments, find_tool, write_arguments
from stepwell.rendering.messages import Tool, ToolCall
from stepwell.rendering.source import NO_MARKS, Marks, Reading, Source

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_KEY: Final = "<arg_key>"
_KEY_END: Final = "</arg_key>"
_VALUE: Final = "<arg_value>"
_VALUE_END: Final = "</arg_value>"
_MARKS: Final = Marks(_OPEN)
_VALUE_ENDS: Final = Marks(_VALUE_END)
_INSTRUCTION: Final = (
    "For each function call, reply with the function's name and each argument in this format:\n"
    f"{_OPEN}NAME\n{_KEY}KEY{_KEY_END}\n{_VALUE}VALUE{_VALUE_END}\n{_CLOSE}"
)


class GlmFormat(ToolFormat):
    """See the module."""

    name = "glm"
    marks = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
    instruction = _INSTRUCTION

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:  # noqa: ARG002
        """See `ToolFormat`."""
        return "\n".join(map(_written, calls))

    def read(self, source: Source, tools: Sequence[Tool]) -> Reading[None]:
        """See `ToolFormat`. A name is certain once a key, or the end, follows it."""
        while (yield from source.prose(_MARKS if tools else NO_MARKS)):
            yield from source.skip_space()
            name = yield from source.name()
            yield from source.skip_space()
            if name and (mark := (yield from source.accept(_KEY, _CLOSE))):
                source.at -= len(mark)
                yield from _read_arguments(source, name, tools)
            else:
                source.refuse()


def _read_arguments(source: Source, name: str, tools: Sequence[Tool]) -> Reading[None]:
    source.open_call(name)
    arguments = TypedArguments(source, find_tool(tools, name), line_breaks=False)
    going = True
    while going:
        yield from source.skip_space()
        if not (yield from source.accept(_KEY)):
            break
        key = yield from source.name()
        yield from source.accept(_KEY_END)
        yield from source.skip_space()
        going = bool((yield from source.accept(_VALUE))) and (yield from arguments.read_value(key, _VALUE_ENDS))
    # Without its end the call was cut or broke down: then its arguments stay as they came.
    if going and (yield from source.accept(_CLOSE)):
        arguments.end()
    source.close_call()
    source.commit()


def _written(call: ToolCall) -> str:
    arguments = "".join(f"{_KEY}{key}{_KEY_END}\n{_VALUE}{text}{_VALUE_END}\n" for key, text in write_arguments(call))
    return f"{_OPEN}{call.name}\n{arguments}{_CLOSE}"
