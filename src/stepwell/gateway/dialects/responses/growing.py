"""A response's items while they are streamed: each opens, grows and closes by numbered events."""

from collections.abc import Sequence
from typing import Any, Protocol

from stepwell.gateway.dialects.base import Token
from stepwell.gateway.dialects.openai import token_shapes
from stepwell.gateway.dialects.responses.kept import Kept
from stepwell.gateway.dialects.responses.shape import (
    Status,
    call_item,
    message_item,
    reasoning_item,
    reasoning_part,
    text_part,
)
from stepwell.gateway.dialects.sse import dump
from stepwell.rendering.messages import ToolCall
from stepwell.rendering.pieces import CallOpened


class Events:
    """Numbers events and writes them."""

    def __init__(self) -> None:
        """Begin at 0."""
        self._next = 0

    def write(self, kind: bytes, rest: bytes) -> bytes:
        """One event; `rest` is the JSON of its fields, without braces."""
        number, self._next = self._next, self._next + 1
        return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (kind, kind, number, rest)

    def shape(self, kind: str, **fields: object) -> bytes:
        """One event of `fields`."""
        return self.write(kind.encode(), dump(fields)[1:-1])


class OpenItem(Protocol):
    """The item that grows at present."""

    def open(self) -> bytes:
        """Events that begin it."""
        ...

    def more(self, text: str, tokens: Sequence[Token]) -> bytes:
        """The event of more text."""
        ...

    def close(self, status: Status) -> tuple[bytes, dict[str, Any]]:
        """Events that end it, and what it became."""
        ...


class TextItem:
    """A message."""

    def __init__(self, events: Events, name: str, index: int) -> None:
        """`index`: place among the response's items."""
        self._events = events
        self._name = name
        self._at = {"item_id": name, "output_index": index, "content_index": 0}
        self._delta = dump(self._at)[1:-1]
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def open(self) -> bytes:
        """See `OpenItem`."""
        item = message_item(self._name, None, [], "in_progress")
        return self._events.shape(
            "response.output_item.added", output_index=self._at["output_index"], item=item
        ) + self._events.shape("response.content_part.added", **self._at, part=text_part("", []))

    def more(self, text: str, tokens: Sequence[Token]) -> bytes:
        """See `OpenItem`."""
        self._texts.append(text)
        shapes = token_shapes(tokens)
        self._logprobs += shapes
        logprobs = dump(shapes) if shapes else b"[]"
        return self._events.write(
            b"response.output_text.delta", b'%b,"delta":%b,"logprobs":%b' % (self._delta, dump(text), logprobs)
        )

    def close(self, status: Status) -> tuple[bytes, dict[str, Any]]:
        """See `OpenItem`."""
        text = "".join(self._texts)
        item = message_item(self._name, text, self._logprobs, status)
        shape = self._events.shape
        events = (
            shape("response.output_text.done", **self._at, text=text, logprobs=self._logprobs),
            shape("response.content_part.done", **self._at, part=text_part(text, self._logprobs)),
            shape("response.output_item.done", output_index=self._at["output_index"], item=item),
        )
        return b"".join(events), item


class ReasoningItem:
    """Reasoning: its summary if the client asked for one, else the reasoning itself."""

    def __init__(self, events: Events, kept: Kept, name: str, index: int) -> None:
        """`index`: place among the response's items."""
        self._events = events
        self._kept = kept
        self._name = name
        self._part = "response.reasoning_summary_part" if kept.summary else "response.content_part"
        self._text = "response.reasoning_summary_text" if kept.summary else "response.reasoning_text"
        self._index = index
        self._at = {"item_id": name, "output_index": index, "summary_index" if kept.summary else "content_index": 0}
        self._delta = dump(self._at)[1:-1]
        self._kind = f"{self._text}.delta".encode()
        self._texts: list[str] = []

    def open(self) -> bytes:
        """See `OpenItem`."""
        item = reasoning_item(self._kept, self._name, None, "in_progress")
        return self._events.shape(
            "response.output_item.added", output_index=self._index, item=item
        ) + self._events.shape(f"{self._part}.added", **self._at, part=reasoning_part(self._kept, ""))

    def more(self, text: str, tokens: Sequence[Token]) -> bytes:  # noqa: ARG002 - only messages show tokens
        """See `OpenItem`."""
        self._texts.append(text)
        return self._events.write(self._kind, b'%b,"delta":%b' % (self._delta, dump(text)))

    def close(self, status: Status) -> tuple[bytes, dict[str, Any]]:
        """See `OpenItem`."""
        text = "".join(self._texts)
        item = reasoning_item(self._kept, self._name, text, status)
        shape = self._events.shape
        events = (
            shape(f"{self._text}.done", **self._at, text=text),
            shape(f"{self._part}.done", **self._at, part=reasoning_part(self._kept, text)),
            shape("response.output_item.done", output_index=self._index, item=item),
        )
        return b"".join(events), item


class CallItem:
    """A function call."""

    def __init__(self, events: Events, kept: Kept, name: str, index: int, opened: CallOpened) -> None:
        """`index`: place among the response's items."""
        self._events = events
        self._kept = kept
        self._name = name
        self._opened = opened
        self._index = index
        self._delta = dump({"item_id": name, "output_index": index})[1:-1]
        self._texts: list[str] = []

    def open(self) -> bytes:
        """See `OpenItem`."""
        return self._events.shape(
            "response.output_item.added", output_index=self._index, item=self._item("", "in_progress")
        )

    def more(self, text: str, tokens: Sequence[Token]) -> bytes:  # noqa: ARG002 - only messages show tokens
        """See `OpenItem`."""
        self._texts.append(text)
        return self._events.write(
            b"response.function_call_arguments.delta", b'%b,"delta":%b' % (self._delta, dump(text))
        )

    def close(self, status: Status) -> tuple[bytes, dict[str, Any]]:
        """See `OpenItem`."""
        arguments = "".join(self._texts)
        item = self._item(arguments, status)
        shape = self._events.shape
        done = shape(
            "response.function_call_arguments.done",
            item_id=self._name,
            output_index=self._index,
            name=item["name"],
            arguments=arguments,
        )
        return done + shape("response.output_item.done", output_index=self._index, item=item), item

    def _item(self, arguments: str, status: Status) -> dict[str, Any]:
        call = ToolCall(id=self._opened.id, name=self._opened.name, arguments=arguments)
        return call_item(self._kept, self._name, call, status)
