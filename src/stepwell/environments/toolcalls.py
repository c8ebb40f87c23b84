"""Tools that take one text each, which a model with no habit of calling tools can still write, line by line."""

import json
from collections.abc import Mapping

from stepwell.rendering.messages import Tool, ToolCall


def text_tool(name: str, parameter: str, description: str) -> Tool:
    """A tool with one required text, called `parameter`."""
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return Tool(name=name, description=description, parameters=schema)


def text_argument(call: ToolCall, parameters: Mapping[str, str]) -> str | None:
    """The one text that a call carries; None if there is no such tool or the arguments are not of its form.

    `parameters` has the name of each tool's parameter. A policy may write anything, so nothing is raised.
    """
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):  # not JSON, or ten thousand brackets
        return None
    if not isinstance(arguments, dict) or len(arguments) != 1 or call.name not in parameters:
        return None
    value = arguments.get(parameters[call.name])
    return value if isinstance(value, str) else None
