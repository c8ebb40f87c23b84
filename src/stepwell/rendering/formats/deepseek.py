"""DeepSeek's calls between full-width marks: with type and code fence (V3, R1), or bare (V3.1). Either is read."""

# ruff: noqa: RUF001 - the marks have full-width bars

import json
from collections.abc import Sequence
from typing import Any, Final

from stepwell.rendering.formats.base import Forced, ToolFormat, arguments_schema
from stepwell.rendering.json_calls import stream_arguments
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.source import NO_MARKS, Marks, Reading, Source
from stepwell.rendering.wire import message_to_json

_CALLS: Final = "<｜tool▁calls▁begin｜>"
_CALLS_END: Final = "<｜tool▁calls▁end｜>"
_CALL: Final = "<｜tool▁call▁begin｜>"
_CALL_END: Final = "<｜tool▁call▁end｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"
_FENCE: Final = "```json\n"
_FENCE_END: Final = "\n```"
_MARKS: Final = Marks(_CALLS, _CALL)
_FENCED: Final = f"{_CALL}function{_SEPARATOR}{{name}}\n{_FENCE}"
_BARE: Final = f"{_CALL}{{name}}{_SEPARATOR}"
_HOW: Final = "To call functions, reply in this format, arguments as JSON:\n"


class DeepseekFormat(ToolFormat):
    """The form of V3 and R1."""

    name = "deepseek"
    marks = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)
    instruction = f"{_HOW}{_CALLS}{_FENCED.format(name='NAME')}ARGUMENTS{_FENCE_END}{_CALL_END}{_CALLS_END}"
    _head = _FENCED
    _tail = f"{_FENCE_END}{_CALL_END}"
    _between = "\n"

    def shape(self, message: Message) -> dict[str, Any]:
        """See `ToolFormat`. The templates join the arguments as text, and call only if there is no content."""
        shape = message_to_json(message)
        if message.tool_calls and not message.content:
            shape["content"] = None
        return shape

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:  # noqa: ARG002
        """See `ToolFormat`."""
        written = [f"{self._head.format(name=call.name)}{call.arguments}{self._tail}" for call in calls]
        return f"{_CALLS}{self._between.join(written)}{_CALLS_END}"

    def read(self, source: Source, tools: Sequence[Tool]) -> Reading[None]:
        """See `ToolFormat`. The outer marks may be missing."""
        while mark := (yield from source.prose(_MARKS if tools else NO_MARKS)):
            if mark == _CALLS:
                yield from source.skip_space()
                mark = yield from source.accept(_CALL)
            while mark and (yield from _read_call(source)):
                yield from source.skip_space()
                mark = yield from source.accept(_CALL, _CALLS_END)
                if mark == _CALLS_END:
                    source.commit()
                    break
            source.refuse()

    def forced(self, tools: Sequence[Tool]) -> Forced:
        """See `ToolFormat`."""
        tool = self._only(tools)
        prefix = f"{_CALLS}{self._head.format(name=tool.name)}"
        return Forced(prefix=prefix, json_schema=json.dumps(arguments_schema(tool)))


class DeepseekV31Format(DeepseekFormat):
    """The form of V3.1."""

    name = "deepseek_v31"
    instruction = f"{_HOW}{_CALLS}{_BARE.format(name='NAME')}ARGUMENTS{_CALL_END}{_CALLS_END}"
    _head = _BARE
    _tail = _CALL_END
    _between = ""


def _read_call(source: Source) -> Reading[bool]:
    """Read behind the call's opening mark; False, and not for good, if no name is there."""
    name = yield from source.name()
    if not name or not (yield from source.accept(_SEPARATOR)):
        return False
    if not (yield from _at_object(source)):  # what came was the type
        name = yield from source.name()
        yield from source.skip_space()
        yield from source.accept(_FENCE.strip())
        yield from source.skip_space()
        if not name:
            return False
    source.open_call(name)
    yield from stream_arguments(source)
    source.close_call()
    yield from source.skip_space()
    yield from source.accept(_FENCE_END.strip())
    yield from source.skip_space()
    yield from source.accept(_CALL_END)
    source.commit()
    return True


def _at_object(source: Source) -> Reading[bool]:
    found = yield from source.accept("{")
    source.at -= len(found)
    return bool(found)
