"""Bare JSON objects, as Llama 3.1 to 3.3 write them: `{"name": …, "parameters": …}`, separated by `;`."""

import json
from collections.abc import Collection, Sequence
from typing import Final

from stepwell.rendering.formats.base import Forced, ToolFormat, call_schema, json_call
from stepwell.rendering.json_calls import read_call
from stepwell.rendering.messages import Tool, ToolCall
from stepwell.rendering.source import NO_MARKS, Marks, Reading, Source

_TAG: Final = "<|python_tag|>"
_MARKS: Final = Marks(_TAG)
_INSTRUCTION: Final = (
    "To call a function, respond with nothing but a JSON object in the format\n"
    '{"name": <function-name>, "parameters": <args-json-object>}\nSeparate several calls by "; ".'
)


class Llama3JsonFormat(ToolFormat):
    """See the module."""

    name = "llama3_json"
    marks = (_TAG,)
    instruction = _INSTRUCTION

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:  # noqa: ARG002
        """See `ToolFormat`."""
        return "; ".join(json_call(call, "parameters") for call in calls)

    def read(self, source: Source, tools: Sequence[Tool]) -> Reading[None]:
        """See `ToolFormat`. Calls stand at the beginning, of offered tools only, or behind the tag, of any."""
        if tools:
            yield from source.skip_space()
            yield from _read_calls(source, {tool.name for tool in tools})
        while (yield from source.prose(_MARKS if tools else NO_MARKS)):
            yield from source.skip_space()
            yield from _read_calls(source, None)

    def forced(self, tools: Sequence[Tool]) -> Forced:
        """See `ToolFormat`."""
        return Forced(prefix="", json_schema=json.dumps(call_schema(tools, "parameters")))


def _read_calls(source: Source, names: Collection[str] | None) -> Reading[None]:
    while (yield from read_call(source, names)):
        yield from source.skip_space()
        yield from source.accept(";")
        yield from source.skip_space()
    source.refuse()
