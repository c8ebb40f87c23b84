"""JSON objects between `<tool_call>` tags: Hermes, Qwen 2.5, Qwen 3, SmolLM 3; and the default of all others."""

import json
from collections.abc import Sequence
from typing import Final

from stepwell.rendering.formats.base import Forced, ToolFormat, call_schema, json_call
from stepwell.rendering.json_calls import read_call
from stepwell.rendering.messages import Tool, ToolCall
from stepwell.rendering.source import NO_MARKS, Marks, Reading, Source

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_MARKS: Final = Marks(_OPEN)
_INSTRUCTION: Final = (
    f"For each function call, return a json object with function name and arguments within {_OPEN}{_CLOSE} XML tags:\n"
    f'{_OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{_CLOSE}'
)


class HermesFormat(ToolFormat):
    """See the module."""

    name = "hermes"
    marks = (_OPEN, _CLOSE)
    instruction = _INSTRUCTION

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:  # noqa: ARG002
        """See `ToolFormat`."""
        return "\n".join(f"{_OPEN}\n{json_call(call)}\n{_CLOSE}" for call in calls)

    def read(self, source: Source, tools: Sequence[Tool]) -> Reading[None]:
        """See `ToolFormat`. Any name counts, offered or not; the closing tag may be missing."""
        while (yield from source.prose(_MARKS if tools else NO_MARKS)):
            yield from source.skip_space()
            if (yield from read_call(source)):
                yield from source.skip_space()
                yield from source.accept(_CLOSE)
                source.commit()
            else:
                source.refuse()

    def forced(self, tools: Sequence[Tool]) -> Forced:
        """See `ToolFormat`."""
        return Forced(prefix=f"{_OPEN}\n", json_schema=json.dumps(call_schema(tools)))
