"""Tools made of Python functions: the schema from the type hints, the description from the docstring."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NotRequired, get_type_hints

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from stepwell.config import imported
from stepwell.environments.tool_arguments import Misused, untitled
from stepwell.errors import ConfigError
from stepwell.rendering.messages import Tool

_typed: Final[Any] = TypedDict
"""Makes a type whose fields are found at run time, which no type checker follows."""
_MOST: Final = 3
"""Mistakes that an answer names."""
_ARGUMENTS: Final = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$", re.MULTILINE)
_SECTION: Final = re.compile(r"^\s*(?:Returns|Raises|Yields|Examples?):\s*$", re.MULTILINE)
_ARGUMENT: Final = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that a policy may call."""

    tool: Tool
    function: Callable[..., Any]
    adapter: TypeAdapter[dict[str, Any]]
    """Checks arguments."""

    def arguments(self, text: str) -> dict[str, Any]:
        """The arguments that a policy wrote, checked, with the types that the function wants.

        Raises:
            Misused: they are not JSON, or not of the function's form.
        """
        try:
            return self.adapter.validate_json(text.encode("utf-8", "replace"), strict=True)
        except ValidationError as error:
            said = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()[:_MOST]]
            raise Misused(f"{self.tool.name} does not take that. {'; '.join(said)}") from error

    def shown(self, result: object) -> str:
        """What the policy reads of a result: a text as it is, all else as JSON."""
        if isinstance(result, str):
            return result
        return "done" if result is None else json.dumps(result, ensure_ascii=False, default=str)


def function_tool(function: Callable[..., Any], *, method: bool = False) -> FunctionTool:
    """The tool that a function is; of a `method`, the first parameter is left out.

    Raises:
        ConfigError: it has no docstring, a parameter has no type hint or none that JSON has values for, or it takes
            any number of arguments.
    """
    name = getattr(function, "__name__", repr(function))
    if not callable(function) or not inspect.getdoc(function):
        raise ConfigError(f"the tool {name} needs a docstring: it is what the policy is told of it")
    about, described = _documented(inspect.getdoc(function) or "")
    fields = {}
    for parameter in list(inspect.signature(function).parameters.values())[method:]:
        fields[parameter.name] = _field(name, function, parameter, described.get(parameter.name))
    try:
        kind = _typed(f"{name}_arguments", fields)
        kind.__pydantic_config__ = ConfigDict(extra="forbid")
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(kind)
        schema = adapter.json_schema()
    except (PydanticUserError, TypeError) as error:
        raise ConfigError(f"the tool {name} has a parameter whose type JSON has no values for: {error}") from error
    return FunctionTool(Tool(name=name, description=about, parameters=untitled(schema)), function, adapter)


def named_tools(reference: str) -> tuple[type | None, Mapping[str, FunctionTool]]:
    """(the class, if it is one; its methods, or the functions, by name) of what is named.

    Raises:
        ConfigError: it is neither a list of functions nor a class, or one of them can be no tool.
    """
    named = imported(reference)
    if isinstance(named, type):
        methods = inspect.getmembers(named, inspect.isfunction)
        found = [function_tool(method, method=True) for name, method in methods if not name.startswith("_")]
    elif isinstance(named, Iterable):
        found = [function_tool(function) for function in named]
    else:
        raise ConfigError(f"{reference} must be a list of functions, or a class whose methods are tools")
    tools = {tool.tool.name: tool for tool in found}
    if len(tools) != len(found):
        raise ConfigError(f"{reference} has two functions of one name")
    return (named if isinstance(named, type) else None), tools


def _field(tool: str, function: Callable[..., Any], parameter: inspect.Parameter, described: str | None) -> Any:
    """The type of one argument, with its description and whether it may be left out."""
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise ConfigError(f"the tool {tool} takes {parameter}: a tool's parameters must each have a name")
    try:
        hint = get_type_hints(function, include_extras=True).get(parameter.name)
    except NameError as error:
        raise ConfigError(f"the tool {tool} has a type hint that cannot be found: {error}") from error
    if hint is None:
        raise ConfigError(f"the tool {tool} needs a type hint for its parameter {parameter.name}")
    annotated = Annotated[hint, Field(description=described)] if described else hint
    return annotated if parameter.default is inspect.Parameter.empty else NotRequired[annotated]


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """(what a docstring says, what it says of each argument); of Google's form, or any other."""
    found = _ARGUMENTS.search(text)
    sections = [match.start() for match in (found, _SECTION.search(text)) if match]
    about = text[: min(sections, default=len(text))].strip()
    if not found:
        return about, {}
    end = _SECTION.search(text, found.end())
    lines = text[found.end() : end.start() if end else len(text)].splitlines()
    matches = [match for line in lines if (match := _ARGUMENT.match(line))]
    return about, {match[1]: match[2].strip() for match in matches}
