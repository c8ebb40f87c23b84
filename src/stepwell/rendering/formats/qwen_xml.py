"""Tags for the function and each parameter, as Qwen3-Coder writes them: `<function=NAME><parameter=KEY>…`."""

from collections.abc import Sequence
from typing import Final

from stepwell.rendering.formats.base import ToolFormat
from stepwell.rendering.formats.typed import TypedArguments, find_tool, write_arguments
from stepwell.rendering.messages import Tool, ToolCall
from stepwell.rendering.source import NO_MARKS, Marks, Reading, Source

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_FUNCTION: Final = "<function="
_FUNCTION_END: Final = "</function>"
_PARAMETER: Final = "<parameter="
_PARAMETER_END: Final = "</parameter>"
_MARKS: Final = Marks(_OPEN, _FUNCTION)
_VALUE_END: Final = Marks(_PARAMETER_END)
_INSTRUCTION: Final = (
    "To call a function, reply in this format, one block for each call:\n"
    f"{_OPEN}\n{_FUNCTION}NAME>\n{_PARAMETER}KEY>\nVALUE\n{_PARAMETER_END}\n{_FUNCTION_END}\n{_CLOSE}"
)


class QwenXmlFormat(ToolFormat):
    """See the module."""

    name = "qwen_xml"
    marks = (_OPEN, _CLOSE)
    instruction = _INSTRUCTION

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:  # noqa: ARG002
        """See `ToolFormat`."""
        return "\n".join(map(_written, calls))

    def read(self, source: Source, tools: Sequence[Tool]) -> Reading[None]:
        """See `ToolFormat`. The outer tags may be missing."""
        while mark := (yield from source.prose(_MARKS if tools else NO_MARKS)):
            if mark == _OPEN:
                yield from source.skip_space()
                mark = yield from source.accept(_FUNCTION)
            name = (yield from source.name()) if mark else ""
            if name and (yield from source.accept(">")):
                yield from _read_parameters(source, name, tools)
            else:
                source.refuse()


def _read_parameters(source: Source, name: str, tools: Sequence[Tool]) -> Reading[None]:
    source.open_call(name)
    arguments = TypedArguments(source, find_tool(tools, name), line_breaks=True)
    going = True
    while going:
        yield from source.skip_space()
        if not (yield from source.accept(_PARAMETER)):
            break
        key = yield from source.name()
        going = bool((yield from source.accept(">"))) and (yield from arguments.read_value(key, _VALUE_END))
    # Without its end the call was cut or broke down: then its arguments stay as they came.
    if going and (yield from source.accept(_FUNCTION_END, _CLOSE)):
        arguments.end()
    source.close_call()
    yield from source.skip_space()
    yield from source.accept(_CLOSE)
    source.commit()


def _written(call: ToolCall) -> str:
    parameters = "".join(f"{_PARAMETER}{key}>\n{text}\n{_PARAMETER_END}\n" for key, text in write_arguments(call))
    return f"{_OPEN}\n{_FUNCTION}{call.name}>\n{parameters}{_FUNCTION_END}\n{_CLOSE}"
