"""Reading replies in tests: in any cuts, and what comes of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from stepwell.rendering.formats import TOOL_FORMATS
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.pieces import (
    CallArguments,
    CallOpened,
    Piece,
    ReasoningPiece,
    ReplyParser,
    TextPiece,
    message_of,
)
from stepwell.rendering.source import PieceParser


def text_tool(name: str) -> Tool:
    properties = {"query": {"type": "string"}, "count": {"type": "integer"}, "deep": {}}
    return Tool(name=name, parameters={"type": "object", "properties": properties, "required": ["query"]})


TOOLS = (text_tool("search"), text_tool("read"))


def parser_of(tool_format: str, tools: Sequence[Tool] = TOOLS) -> ReplyParser:
    return PieceParser(partial(TOOL_FORMATS[tool_format].read, tools=tools))


def read(parser: ReplyParser, parts: Iterable[str]) -> list[Piece]:
    pieces = [piece for part in parts for piece in parser.feed(part)]
    return [*pieces, *parser.finish()]


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one kind as one piece, and ids that do not differ between runs."""
    whole: list[Piece] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if isinstance(piece, TextPiece | ReasoningPiece | CallArguments) and type(piece) is type(last):
            whole[-1] = type(piece)(last.text + piece.text)
        else:
            whole.append(CallOpened("id", piece.name) if isinstance(piece, CallOpened) else piece)
    return whole


def is_beginning(early: Sequence[Piece], whole: Sequence[Piece]) -> bool:
    """Whether `joined` pieces are what the others begin with."""
    if not early:
        return True
    *before, last = early
    if len(early) > len(whole) or list(before) != list(whole[: len(before)]):
        return False
    other = whole[len(before)]
    if isinstance(last, TextPiece | ReasoningPiece | CallArguments):
        return type(other) is type(last) and other.text.startswith(last.text)
    return other == last


def message(tool_format: str, text: str, tools: Sequence[Tool] = TOOLS) -> Message:
    return message_of(read(parser_of(tool_format, tools), [text]))


def said_and_called(tool_format: str, text: str, tools: Sequence[Tool] = TOOLS) -> tuple[str, list[tuple[str, str]]]:
    """Content, and (name, arguments) of each call."""
    answer = message(tool_format, text, tools)
    return answer.content, [(call.name, call.arguments) for call in answer.tool_calls]


def calls_with_values(answer: Message) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]


def without_id(answer: Message) -> Message:
    return replace(answer, tool_calls=tuple(replace(call, id="") for call in answer.tool_calls))
