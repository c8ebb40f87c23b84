"""A reply while it is sampled, in pieces that are certain: what streams to a client and adds up to the message.

Pieces are structs, because one is made for each token, and a frozen dataclass takes several times as long to make.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from stepwell.rendering.messages import Message, ToolCall


class TextPiece(msgspec.Struct, frozen=True, gc=False):
    """More of what is said."""

    text: str


class ReasoningPiece(msgspec.Struct, frozen=True, gc=False):
    """More of what is thought."""

    text: str


class CallOpened(msgspec.Struct, frozen=True, gc=False):
    """A tool call begins; the pieces of its arguments follow."""

    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of the arguments of the call that was opened last: JSON text."""

    text: str


class CallClosed(msgspec.Struct, frozen=True, gc=False):
    """The call that was opened last is complete."""


Piece = TextPiece | ReasoningPiece | CallOpened | CallArguments | CallClosed


class ReplyParser(Protocol):
    """Splits one reply into reasoning, text and tool calls as it arrives. Used once, then thrown away.

    Laws: nothing raises, whatever the text; `message_of` of all pieces, `finish()` included, does not depend on how the
    text was cut into feeds; each piece comes as early as it is certain.
    """

    def feed(self, text: str) -> list[Piece]:
        """What `text`, which follows all that was fed before, makes certain."""
        ...

    def finish(self) -> list[Piece]:
        """The reply is over: what was held back."""
        ...


def pieces_of(message: Message) -> list[Piece]:
    """A message in whole pieces: the inverse of `message_of`."""
    pieces: list[Piece] = []
    if message.reasoning:
        pieces.append(ReasoningPiece(message.reasoning))
    if message.content:
        pieces.append(TextPiece(message.content))
    for call in message.tool_calls:
        pieces += [CallOpened(call.id, call.name), CallArguments(call.arguments), CallClosed()]
    return pieces


def message_of(pieces: Iterable[Piece]) -> Message:
    """The assistant message that pieces add up to."""
    said: list[str] = []
    thought: list[str] = []
    opened: list[tuple[CallOpened, list[str]]] = []
    for piece in pieces:
        match piece:
            case TextPiece(text):
                said.append(text)
            case ReasoningPiece(text):
                thought.append(text)
            case CallOpened():
                opened.append((piece, []))
            case CallArguments(text):
                opened[-1][1].append(text)
            case CallClosed():
                pass
    calls = [ToolCall(id=call.id, name=call.name, arguments="".join(parts)) for call, parts in opened]
    content = "".join(said)
    return Message(role="assistant", content=content, reasoning="".join(thought), tool_calls=tuple(calls))
