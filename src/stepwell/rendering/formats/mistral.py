"""Calls behind `[TOOL_CALLS]`: a JSON array of them, or, in newer models, `name[ARGS]{…}` for each. Either is read."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from stepwell.rendering.formats.base import (
    Forced,
    ToolFormat,
    arguments_schema,
    call_schema,
    json_call,
    template_shape,
)
from stepwell.rendering.json_calls import read_call, stream_arguments
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.source import NO_MARKS, Marks, Reading, Source

_CALLS: Final = "[TOOL_CALLS]"
_ID: Final = "[CALL_ID]"
_ARGS: Final = "[ARGS]"
_MARKS: Final = Marks(_CALLS)
_ID_LENGTH: Final = 9


class MistralFormat(ToolFormat):
    """The array form."""

    name = "mistral"
    marks = (_CALLS, _ID, _ARGS)
    instruction = f'To call functions, respond with\n{_CALLS} [{{"name": <name>, "arguments": <args-json-object>}}, …]'

    def shape(self, message: Message) -> dict[str, Any]:
        """See `ToolFormat`. The templates refuse call ids that are not nine letters or digits."""
        shape = template_shape(message)
        for call in shape.get("tool_calls", ()):
            call["id"] = _short(call["id"])
        if message.tool_call_id is not None:
            shape["tool_call_id"] = _short(message.tool_call_id)
        return shape

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:  # noqa: ARG002
        """See `ToolFormat`."""
        return f"{_CALLS} [{', '.join(map(json_call, calls))}]"

    def read(self, source: Source, tools: Sequence[Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        while (yield from source.prose(_MARKS if tools else NO_MARKS)):
            yield from source.skip_space()
            if (yield from source.accept("[")):
                yield from _read_array(source)
            else:
                yield from _read_named(source)

    def forced(self, tools: Sequence[Tool]) -> Forced:
        """See `ToolFormat`."""
        item = call_schema(tools)
        schema: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": 1}
        if "$defs" in item:
            schema["$defs"] = item.pop("$defs")
        return Forced(prefix=f"{_CALLS} ", json_schema=json.dumps({**schema, "items": item}))


class MistralArgsFormat(MistralFormat):
    """The form with `[ARGS]`."""

    name = "mistral_args"
    instruction = f"To call functions, respond with {_CALLS}<name>{_ARGS}<args-json-object> for each."

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:  # noqa: ARG002
        """See `ToolFormat`."""
        return "".join(f"{_CALLS}{call.name}{_ARGS}{call.arguments}" for call in calls)

    def forced(self, tools: Sequence[Tool]) -> Forced:
        """See `ToolFormat`."""
        tool = self._only(tools)
        return Forced(prefix=f"{_CALLS}{tool.name}{_ARGS}", json_schema=json.dumps(arguments_schema(tool)))


def _read_array(source: Source) -> Reading[None]:
    yield from source.skip_space()
    while (yield from read_call(source)):
        yield from source.skip_space()
        if (yield from source.accept(",", "]")) != ",":
            source.commit()
            return
        yield from source.skip_space()
    source.refuse()


def _read_named(source: Source) -> Reading[None]:
    name = yield from source.name()
    if (yield from source.accept(_ID)):
        yield from source.name()
    yield from source.accept(_ARGS)
    yield from source.skip_space()
    if not name or not (yield from source.accept("{")):
        source.refuse()
        return
    source.at -= 1
    source.open_call(name)
    yield from stream_arguments(source)
    source.close_call()


def _short(call_id: str) -> str:
    if len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:_ID_LENGTH]
