"""Checking the arguments of tool calls against the tools' JSON schemas, in words that a policy can learn from.

Of JSON Schema, what tools use is checked: types, `required`, `properties`, `additionalProperties`, `items`, `enum`.
Other keywords are left to the tool itself.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from stepwell.rendering.messages import Tool, ToolCall

_MOST: Final = 3
"""Mistakes that an answer names."""
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class Misused(Exception):  # told to the policy, raised to nobody
    """A call that no tool takes, in words for the one who made it."""


def checked_arguments(call: ToolCall, tools: Mapping[str, Tool]) -> dict[str, Any]:
    """The arguments of a call of one of the tools.

    Raises:
        Misused: there is no such tool, or it does not take them.
    """
    arguments = json_arguments(call, tools)
    mistakes = list(_mistakes("", arguments, tools[call.name].parameters))[:_MOST]
    if mistakes:
        raise Misused(f"{call.name} does not take that: {'; '.join(mistakes)}.")
    return arguments


def json_arguments(call: ToolCall, tools: Mapping[str, Tool]) -> dict[str, Any]:
    """The arguments of a call, unchecked except that the tool exists and that they are a JSON object.

    Raises:
        Misused: otherwise.
    """
    if call.name not in tools:
        raise Misused(f"there is no tool {call.name[:40]!r}; use {', '.join(tools) or 'none'}.")
    try:
        arguments = json.loads(call.arguments or "{}", parse_constant=_not_json)
    except (ValueError, RecursionError) as error:  # not JSON, or ten thousand brackets
        raise Misused(f"the arguments of {call.name} are not JSON: {str(error)[:80]}.") from error
    if not isinstance(arguments, dict):
        raise Misused(f"the arguments of {call.name} must be a JSON object.")
    return arguments


def untitled(schema: Any) -> Any:
    """A schema without the titles that are made of names: they tell a policy nothing, and cost tokens."""
    if isinstance(schema, list):
        return [untitled(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: {name: untitled(one) for name, one in value.items()} if key == "properties" else untitled(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _mistakes(place: str, value: object, schema: Any) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    named = place or "the arguments"
    kinds = schema.get("type")
    wanted = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if wanted and not any(_is(value, kind) for kind in wanted):
        yield f"{named} must be {' or '.join(map(str, wanted))}"
        return
    choices = schema.get("enum")
    if isinstance(choices, list) and value not in choices:
        yield f"{named} must be one of {', '.join(map(str, choices[:20]))}"
    if isinstance(value, dict):
        yield from _of_object(place, value, schema)
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _mistakes(f"{place}[{number}]", item, schema.get("items"))


def _of_object(place: str, value: Mapping[str, object], schema: Mapping[str, Any]) -> Iterator[str]:
    inside = f"{place}." if place else ""
    properties = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in value:
            yield f"{inside}{name} is missing"
    others = schema.get("additionalProperties", bool(place))  # a tool takes what it names
    for name, item in value.items():
        if name in properties:
            yield from _mistakes(f"{inside}{name}", item, properties[name])
        elif others is False:
            yield f"there is no {inside}{name[:40]}"
        else:
            yield from _mistakes(f"{inside}{name[:40]}", item, others)


def _is(value: object, kind: object) -> bool:
    """Whether a JSON value is of a kind; of an unknown kind, everything is."""
    if not isinstance(kind, str) or kind not in _KINDS:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    whole = kind == "integer" and isinstance(value, float) and value.is_integer()
    return whole or isinstance(value, _KINDS[kind])
