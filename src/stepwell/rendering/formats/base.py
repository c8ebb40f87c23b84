"""What a tool format is, and what formats share: how tools, calls and results become plain text."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from stepwell.errors import InvalidRequest
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.source import Reading, Source
from stepwell.rendering.wire import message_to_json, tool_to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """How an answer must begin and go on to be a tool call."""

    prefix: str
    """The beginning of the answer, which goes to the end of the prompt."""
    json_schema: str
    """JSON text of the schema that the rest must meet."""


class ToolFormat(ABC):
    """How one family of models writes tool calls.

    What is not certainly a call is text. A call is certain once its name is; if its arguments then break off or break
    down, they are what came, and what follows is text.

    Laws (tests/rendering/formats/test_laws.py): `read` never raises; its pieces do not depend on how the text was cut
    and are never taken back; calls that `write_calls` wrote read back as they were.
    """

    name: ClassVar[str]
    """Its key in `TOOL_FORMATS`."""
    marks: ClassVar[tuple[str, ...]] = ()
    """Tokens that `read` must see although they may be special, which otherwise are no part of a reply's text."""
    native: ClassVar[bool] = True
    """Whether a chat template that takes tools writes them this way by itself."""
    instruction: ClassVar[str] = ""
    """How to call, in words, for models whose chat template does not say it."""

    def shape(self, message: Message) -> dict[str, Any]:
        """The message as the family's chat templates expect it."""
        return template_shape(message)

    def write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """The conversation with tools, calls and results written as plain text of system, user and assistant turns.

        For a chat template that knows no tools. They are listed, followed by `instruction`, at the end of the system
        message, which is made if there is none.
        """
        written: list[Message] = []
        previous_role = ""
        for message in messages:
            if message.role == "tool":
                content = f"<tool_response>\n{message.content}\n</tool_response>"
                if previous_role == "tool":  # results of parallel calls form one turn
                    written[-1] = replace(written[-1], content=f"{written[-1].content}\n{content}")
                else:
                    written.append(Message(role="user", content=content))
            elif message.tool_calls:
                parts = filter(None, [message.content, self.write_calls(message.tool_calls, tools)])
                written.append(replace(message, content="\n".join(parts), tool_calls=()))
            else:
                written.append(message)
            previous_role = message.role
        return _with_tools(written, tools, self.instruction) if tools else written

    @abstractmethod
    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:
        """Calls as the model would write them."""

    @abstractmethod
    def read(self, source: Source, tools: Sequence[Tool]) -> Reading[None]:
        """Read a reply, reasoning aside, that may call `tools`; if there are none, nothing is a call."""

    def forced(self, tools: Sequence[Tool]) -> Forced:
        """How an answer begins that calls one of `tools`, of which there is at least one.

        Raises:
            InvalidRequest: such a call cannot be described by a JSON schema.
        """
        raise InvalidRequest(
            f"in the tool format {self.name!r} a model cannot be forced to call {tools[0].name!r}, since no JSON "
            "schema describes the call; leave tool_choice at 'auto', or set another tool format"
        )

    def _only(self, tools: Sequence[Tool]) -> Tool:
        """The one tool. Raises InvalidRequest if there are several: a name outside the JSON cannot be left open."""
        if len(tools) != 1:
            raise InvalidRequest(
                f"the tool format {self.name!r} can only force a call of one tool; name it in tool_choice, or offer one"
            )
        return tools[0]


def template_shape(message: Message) -> dict[str, Any]:
    """OpenAI's shape with the arguments parsed: most templates write them with `tojson`, which would quote a string."""
    shape = message_to_json(message)
    for call in shape.get("tool_calls", ()):
        call["function"]["arguments"] = _parsed(call["function"]["arguments"])
    return shape


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _with_tools(written: list[Message], tools: Sequence[Tool], instruction: str) -> list[Message]:
    listed = "\n".join(json.dumps(tool_to_json(tool), ensure_ascii=False) for tool in tools)
    text = (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{listed}\n</tools>\n\n"
        f"{instruction}"
    )
    if written and written[0].role == "system":
        return [replace(written[0], content=f"{written[0].content}\n\n{text}"), *written[1:]]
    return [Message(role="system", content=text), *written]


def json_call(call: ToolCall, arguments_key: str = "arguments") -> str:
    """A call as a JSON object, its arguments as they are."""
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "{arguments_key}": {call.arguments}}}'


def call_schema(tools: Sequence[Tool], arguments_key: str = "arguments") -> dict[str, Any]:
    """Schema of an object that is a call of one of `tools`."""
    definitions: dict[str, Any] = {}
    calls = []
    for tool in tools:
        properties = {"name": {"const": tool.name}, arguments_key: _hoisted(tool, definitions)}
        required = list(properties)
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": definitions} if definitions else schema


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Schema of a tool's arguments."""
    return tool.parameters or {"type": "object"}


def _hoisted(tool: Tool, definitions: dict[str, Any]) -> Any:
    """The arguments' schema with its definitions moved to the root, to which references are relative."""
    schema = dict(arguments_schema(tool))
    for key in ("$defs", "definitions"):
        own = schema.pop(key, None)
        if isinstance(own, dict):
            renamed = {f"#/{key}/{name}": f"{tool.name}.{name}" for name in own}
            definitions.update({f"{tool.name}.{name}": own[name] for name in own})
            schema = _renamed(schema, renamed)
            definitions.update({name: _renamed(definitions[name], renamed) for name in renamed.values()})
    return schema


def _renamed(schema: Any, references: dict[str, str]) -> Any:
    if isinstance(schema, list):
        return [_renamed(part, references) for part in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {key: _renamed(value, references) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference in references:
        renamed["$ref"] = f"#/$defs/{references[reference]}"
    return renamed
