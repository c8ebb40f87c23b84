"""What the requests of all chat APIs have in common: text in blocks, sampling, tool choice, the answer's shape."""

from collections.abc import Mapping
from typing import Final, TypedDict

from stepwell.gateway.dialects.base import ToolChoice
from stepwell.gateway.dialects.fields import LARGEST, Fields, compact_json, invalid, wrong_type
from stepwell.rendering.messages import Message, Tool

ANY_OBJECT: Final = '{"type":"object"}'
"""The schema behind "answer in JSON", whichever."""

_TEXTS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
    "tool_reference": "tool_name",
}
_TITLE_FIELDS: Final = {"title", "topic", "isNewTopic"}
_TITLE_PROMPT: Final = "You are a title generator"
_MOST_STOPS: Final = 16


def text_of(fields: Fields, name: str, between: str = "\n") -> str:
    """A content field as text: null, a string, or blocks of text with `between` between them.

    Raises:
        InvalidRequest: it is something else, or a block is no text.
    """
    value = fields.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(fields.place(name), "a string or a list of blocks", value)
    return between.join([block_text(block, f"{fields.place(name)}.{index}") for index, block in enumerate(value)])


def block_text(value: object, place: str) -> str:
    """The text of one content block. Raises InvalidRequest if it is no text."""
    if isinstance(value, str):
        return value
    block = Fields(value, place)
    kind = block.text("type")
    field = _TEXTS.get(kind or "text")
    if field is None:
        raise invalid(place, f"a block of type {kind!r} is not supported: the model reads text alone")
    return block.text(field) or ""


class Sampled(TypedDict):
    """The fields of `ChatCall` that say how to sample."""

    temperature: float
    top_p: float
    top_k: int


def sampled(fields: Fields) -> Sampled:
    """Read temperature, top_p and top_k, by these names. Raises InvalidRequest."""
    temperature = fields.number("temperature", 0, 100)
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        raise invalid(fields.place("top_p"), "must be above 0; for the likeliest token set temperature to 0")
    top_k = fields.integer("top_k", -1)
    return Sampled(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=max(top_k or 0, 0),
    )


def stops(fields: Fields, name: str) -> tuple[str, ...]:
    """Texts that end the answer: a string or a list of them. Raises InvalidRequest."""
    value = fields.get(name)
    texts = [value] if isinstance(value, str) else fields.items(name)
    if len(texts) > _MOST_STOPS:
        raise invalid(fields.place(name), f"at most {_MOST_STOPS} texts, got {len(texts)}")
    for text in texts:
        if not isinstance(text, str) or not text or len(text) > 1024:
            raise invalid(fields.place(name), "each must be a text of 1 to 1024 characters")
    return tuple(str(text) for text in texts)


def refuse(fields: Fields, harmless: Mapping[str, tuple[object, ...]]) -> None:
    """Raise InvalidRequest for a parameter that would have to be ignored although the client relies on it.

    Args:
        fields: Where the parameters are.
        harmless: For each of them the values that ask for nothing.
    """
    for name in fields.common(harmless):
        if fields.has(name) and fields.get(name) not in harmless[name]:
            raise invalid(fields.place(name), "is not supported here: leave it out")


def chosen(tools: tuple[Tool, ...], place: str, *, name: str = "", parallel: bool = True) -> ToolChoice:
    """The choice that forces a call, of the tool `name` if one is given. Raises InvalidRequest if it is not offered."""
    if not tools:
        raise invalid(place, "forces a call, but no tool is offered that the client runs by itself")
    if name and all(tool.name != name for tool in tools):
        raise invalid(place, f"forces a call of {name!r}, which is not among the tools that the client runs by itself")
    return ToolChoice(forced=True, name=name, parallel=parallel)


def schema_of(fields: Fields | None) -> str:
    """The JSON text of the schema that a format field asks for; empty if any text will do. Raises InvalidRequest."""
    kind = (fields.text("type") or "text") if fields else "text"
    if fields is None or kind == "text":
        return ""
    if kind == "json_object":
        return ANY_OBJECT
    if kind == "json_schema":
        schema = (fields.child("json_schema") or fields).mapping("schema")
        return compact_json(schema)
    raise invalid(fields.place("type"), f"must be text, json_object or json_schema, got {kind!r}")


def asks_title(schema: Mapping[str, object], tools: tuple[Tool, ...], messages: tuple[Message, ...]) -> bool:
    """Whether a request without tools shows that it is for a title alone, by its schema or its system message."""
    if tools:
        return False
    properties = schema.get("properties")
    if isinstance(properties, dict) and "title" in properties and properties.keys() <= _TITLE_FIELDS:
        return True
    return bool(messages) and messages[0].role == "system" and messages[0].content.startswith(_TITLE_PROMPT)


def schema_asked(fields: Fields | None) -> Mapping[str, object]:
    """The schema that `schema_of` writes, as it came."""
    if fields is None or fields.text("type") != "json_schema":
        return {}
    return (fields.child("json_schema") or fields).mapping("schema")


def parameters_of(fields: Fields, name: str) -> dict[str, object]:
    """A tool's schema of its arguments; any object if it is missing."""
    return fields.mapping(name) or {"type": "object", "properties": {}}


def seed_of(fields: Fields) -> int | None:
    """The seed, brought into the range that engines take."""
    seed = fields.integer("seed", -(2**63), 2**64)
    return None if seed is None else seed % 2**63


def limit_of(fields: Fields, *names: str) -> int | None:
    """The first given of several names for the most tokens of an answer; far too large is fine, it is clamped later."""
    for name in names:
        limit = fields.integer(name, 1, 2**63)
        if limit is not None:
            return min(limit, LARGEST)
    return None
