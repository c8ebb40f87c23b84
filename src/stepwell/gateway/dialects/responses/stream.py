"""A response as a stream of events, every one numbered: its items open, grow and close one after another."""

import time
from typing import Any

from stepwell.gateway.dialects.base import Answer, ChatCall, Delta, Started, Token
from stepwell.gateway.dialects.responses.growing import CallItem, Events, OpenItem, ReasoningItem, TextItem
from stepwell.gateway.dialects.responses.kept import kept_of
from stepwell.gateway.dialects.responses.shape import Status, call_id, end_status, item_id, response
from stepwell.gateway.dialects.sse import COMMENT, dump
from stepwell.gateway.problems import Problem
from stepwell.rendering.pieces import CallArguments, CallClosed, CallOpened, Piece, ReasoningPiece, TextPiece


class ResponsesWriter:
    """Events of one streamed response."""

    def __init__(self, call: ChatCall) -> None:
        """Begin an answer to `call`."""
        self._call = call
        self._kept = kept_of(call)
        self._events = Events()
        self._step_id = ""
        self._created = int(time.time())
        self._item: OpenItem | None = None
        self._done: list[dict[str, Any]] = []
        self._counts = {"rs": 0, "msg": 0, "fc": 0}
        self._tokens: list[Token] = []

    def start(self, started: Started) -> bytes:
        """See `StreamWriter`."""
        self._step_id = started.step_id
        begun = b'"response":' + dump(response(self._call, self._step_id, self._created, [], None))
        return self._events.write(b"response.created", begun) + self._events.write(b"response.in_progress", begun)

    def delta(self, delta: Delta) -> bytes:
        """See `StreamWriter`."""
        self._tokens += delta.tokens
        return b"".join(map(self._piece, delta.pieces))

    def end(self, answer: Answer) -> bytes:
        """See `StreamWriter`."""
        rest = b"" if self._done or self._item else self._open(self._message())
        rest += self._close("completed" if isinstance(self._item, CallItem) else end_status(answer))
        kind = "response.incomplete" if answer.end == "length" else "response.completed"
        final = response(self._call, self._step_id, self._created, self._done, answer)
        return rest + self._events.shape(kind, response=final)

    def ping(self) -> bytes:
        """See `StreamWriter`."""
        return COMMENT

    def error(self, problem: Problem) -> bytes:
        """See `StreamWriter`."""
        failed = response(self._call, self._step_id, self._created, self._done, None)
        failed |= {"status": "failed", "error": {"code": problem.code, "message": problem.message}}
        return self._events.shape("response.failed", response=failed)

    def _piece(self, piece: Piece) -> bytes:
        match piece:
            case TextPiece(text):
                return self._text(text)
            case ReasoningPiece(text):
                return self._reasoning(text)
            case CallArguments(text):
                return self._item.more(text, ()) if self._item else b""
            case CallOpened():
                closed = self._close("completed")
                name = call_id(self._step_id, self._count("fc"))
                return closed + self._open(CallItem(self._events, self._kept, name, len(self._done), piece))
            case CallClosed():
                return self._close("completed")

    def _text(self, text: str) -> bytes:
        opened = b""
        if not isinstance(self._item, TextItem):
            opened = self._close("completed")
            opened += self._open(self._message())
        tokens, self._tokens = self._tokens, []
        return opened + self._item.more(text, tokens) if self._item else opened

    def _message(self) -> TextItem:
        return TextItem(self._events, item_id("msg", self._step_id, self._count("msg")), len(self._done))

    def _reasoning(self, text: str) -> bytes:
        opened = b""
        if not isinstance(self._item, ReasoningItem):
            opened = self._close("completed")
            name = item_id("rs", self._step_id, self._count("rs"))
            opened += self._open(ReasoningItem(self._events, self._kept, name, len(self._done)))
        return opened + self._item.more(text, ()) if self._item else opened

    def _open(self, item: OpenItem) -> bytes:
        self._item = item
        return item.open()

    def _close(self, status: Status) -> bytes:
        if self._item is None:
            return b""
        events, shape = self._item.close(status)
        self._item = None
        self._done.append(shape)
        return events

    def _count(self, prefix: str) -> int:
        number = self._counts[prefix]
        self._counts[prefix] = number + 1
        return number
