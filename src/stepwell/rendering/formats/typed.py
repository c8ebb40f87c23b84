"""Arguments that are written as tagged text, turned into JSON while they are sampled, by the types of the schema."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stepwell.rendering.messages import Tool, ToolCall
from stepwell.rendering.source import Marks, Reading, Source

_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


class TypedArguments:
    """Writes the open call's arguments as one JSON object.

    A parameter that the schema allows to be a string gets its text as it is, streamed; any other its text if that is
    JSON (or Python's True, False or None, which templates write), else the text as a string.
    """

    def __init__(self, source: Source, tool: Tool | None, *, line_breaks: bool) -> None:
        """Begin.

        Args:
            source: Where the call is read.
            tool: The tool that is called; None if it was not offered.
            line_breaks: Whether the family puts a line break before and after each value that is not part of it.
        """
        self._source = source
        self._properties = _properties(tool)
        self._line_breaks = line_breaks
        self._count = 0

    def read_value(self, key: str, close: Marks) -> Reading[bool]:
        """Read the text of parameter `key` up to `close`; False if the reply ended before."""
        opening = ", " if self._count else "{"
        self._count += 1
        self._source.argue(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        if _may_be_string(self._properties.get(key)):
            return (yield from self._stream_string(close))
        parts: list[str] = []
        mark = yield from self._source.copy(close, parts.append)
        if mark:
            self._source.argue(self._as_json("".join(parts)))
        self._source.commit()
        return bool(mark)

    def end(self) -> None:
        """All parameters are read."""
        self._source.argue("}" if self._count else "{}")

    def _stream_string(self, close: Marks) -> Reading[bool]:
        text = _StringText(self._source, self._line_breaks)
        self._source.argue('"')
        mark = yield from self._source.copy(close, text.add)
        self._source.commit()
        if mark:
            self._source.argue('"')
        return bool(mark)

    def _as_json(self, text: str) -> str:
        bare = text.strip()
        bare = _PYTHON_WORDS.get(bare, bare)
        try:
            json.loads(bare, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return json.dumps(_unwrapped(text) if self._line_breaks else text, ensure_ascii=False)
        return bare


class _StringText:
    """The inside of a JSON string; a line break is held back, since the last one may not be part of it."""

    def __init__(self, source: Source, line_breaks: bool) -> None:
        self._source = source
        self._line_breaks = line_breaks
        self._begun = not line_breaks
        self._held = ""

    def add(self, text: str) -> None:
        if not self._begun:
            self._begun = True
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = "\n" if self._line_breaks and text.endswith("\n") else ""
        self._source.argue(json.dumps(text.removesuffix(self._held), ensure_ascii=False)[1:-1])


def write_arguments(call: ToolCall) -> list[tuple[str, str]]:
    """(parameter, text) of each argument; none if they are no JSON object."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return []
    if not isinstance(arguments, dict):
        return []
    return [(key, _text(value)) for key, value in arguments.items()]


def find_tool(tools: Sequence[Tool], name: str) -> Tool | None:
    """The offered tool of that name."""
    return next((tool for tool in tools if tool.name == name), None)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unwrapped(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def _properties(tool: Tool | None) -> Mapping[str, Any]:
    properties = tool.parameters.get("properties") if tool else None
    return properties if isinstance(properties, dict) else {}


def _may_be_string(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    kinds = schema.get("type")
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return True
    options = schema.get("enum")
    if kinds is None and isinstance(options, list):
        return all(isinstance(option, str) for option in options)
    choices = schema.get("anyOf", schema.get("oneOf"))
    return isinstance(choices, list) and any(_may_be_string(choice) for choice in choices)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
