"""A reply's text as it arrives, read by generators: a grammar is straight code that yields where it needs more text.

What a grammar has read may still turn out to be no call. So text is kept from the last point of no return (`commit`)
on, and `refuse` makes ordinary text of it.
"""

import re
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from stepwell.rendering.pieces import CallArguments, CallClosed, CallOpened, Piece, ReasoningPiece, TextPiece
from stepwell.types import new_id

_T = TypeVar("_T")
Reading = Generator[None, None, _T]
"""Yields when it needs more text, or to know that there is none; returns what it read."""

Flow = type[TextPiece] | type[ReasoningPiece]

_SPACE: Final = re.compile(r"\s*")
_NAME: Final = re.compile(r"[^\s<>\[\]{}\"',;|]{1,257}")
_LONGEST_NAME: Final = 256


class Marks:
    """Texts that end a run of prose; all begin with the same character."""

    def __init__(self, *texts: str) -> None:
        """Prepare to look for `texts`; with none of them nothing is ever found."""
        self._texts: Final = texts
        self._longest = max(map(len, texts), default=0)
        self.watch: Final = texts[0][0] if texts else "\0"
        """Text without this character has no mark, nor the beginning of one."""
        self.pattern: Final = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def tail(self, text: str) -> int:
        """Length of the longest end of `text` that is a beginning, not the whole, of a mark."""
        at = text.find(self.watch, max(0, len(text) - self._longest + 1))
        while at >= 0:
            if any(mark.startswith(text[at:]) for mark in self._texts):
                return len(text) - at
            at = text.find(self.watch, at + 1)
        return 0


NO_MARKS: Final = Marks()


class Source:
    """The text that is not read for good, and the pieces made of what is.

    White space before a call, after it, and around reasoning belongs to nothing, so space is held back until it is
    clear what follows.
    """

    def __init__(self) -> None:
        """Begin before the first character."""
        self.text = ""
        self.at = 0
        """What is before this position is read, but not for good."""
        self.ended = False
        self.out: list[Piece] = []
        self.flow: Flow | None = None
        """Set while any text without `watch` that does not end in space is a piece of this kind as it stands."""
        self.watch = NO_MARKS.watch
        self._space = ""
        self._drop_space = False

    def more(self) -> Reading[bool]:
        """Wait for text; False if the reply is over."""
        if self.ended:
            return False
        yield
        return True

    def skip_space(self) -> Reading[None]:
        """Read white space."""
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or not (yield from self.more()):
                return

    def accept(self, *literals: str) -> Reading[str]:
        """Read whichever of `literals` comes next; empty, and nothing read, if none does."""
        while True:
            for literal in literals:
                if self.text.startswith(literal, self.at):
                    self.at += len(literal)
                    return literal
            undecided = any(literal.startswith(self.text[self.at :]) for literal in literals)
            if not undecided or not (yield from self.more()):
                return ""

    def name(self) -> Reading[str]:
        """Read a name, which ends before space or punctuation of markup; empty, and nothing read, if there is none."""
        while True:
            match = _NAME.match(self.text, self.at)
            end = match.end() if match else self.at
            if end - self.at > _LONGEST_NAME:
                return ""
            if end < len(self.text) or not (yield from self.more()):
                name, self.at = self.text[self.at : end], end
                return name

    def copy(self, marks: Marks, emit: Callable[[str], None]) -> Reading[str]:
        """Give text to `emit` up to the first mark, which is read too, and return that; empty at the reply's end."""
        self.commit()
        while True:
            found = marks.pattern.search(self.text)
            held = 0 if self.ended else marks.tail(self.text)
            end = found.start() if found else len(self.text) - held
            if end:
                emit(self.text[:end])
                self.text = self.text[end:]
            if found:
                self.at = len(found[0])
                return found[0]
            if not (yield from self.more()):
                return ""

    def prose(self, marks: Marks, kind: Flow = TextPiece) -> Reading[str]:
        """`copy` to pieces of one kind."""
        copying = self.copy(marks, self._say_reasoning if kind is ReasoningPiece else self._say)
        while True:
            try:
                next(copying)
            except StopIteration as end:
                mark: str = end.value
                return mark
            self.watch = marks.watch
            self.flow = None if self.text or self._space or self._drop_space else kind
            yield
            self.flow = None

    def commit(self) -> None:
        """What has been read is read for good."""
        self.text, self.at = self.text[self.at :], 0

    def refuse(self) -> None:
        """What has been read since the last commit is text after all."""
        self._say(self.text[: self.at])
        self.commit()

    def turn(self) -> None:
        """Text, reasoning or a call ends here or begins: the white space around this place belongs to nothing."""
        self._space, self._drop_space = "", True
        self.commit()

    def open_call(self, name: str) -> None:
        """What has been read is certainly a call."""
        self.turn()
        self.out.append(CallOpened(new_id("call"), name))

    def argue(self, text: str) -> None:
        """More of the call's arguments."""
        if text:
            self.out.append(CallArguments(text))

    def close_call(self) -> None:
        """The call is complete, or nothing more can come of it."""
        self.out.append(CallClosed())

    def say_rest(self) -> None:
        """Hand out the space at the reply's end."""
        if self._space:
            self.out.append(TextPiece(self._space))

    def take(self) -> list[Piece]:
        """The pieces since the last call."""
        pieces, self.out = self.out, []
        return pieces

    def _say(self, text: str) -> None:
        text = self._trimmed(text)
        if text:
            self.out.append(TextPiece(text))

    def _say_reasoning(self, text: str) -> None:
        text = self._trimmed(text)
        if text:
            self.out.append(ReasoningPiece(text))

    def _trimmed(self, text: str) -> str:
        if self._drop_space:
            text = text.lstrip()
            self._drop_space = not text
        body = text.rstrip()
        if not body:
            self._space += text
            return ""
        body, self._space = self._space + body, text[len(body) :]
        return body


class PieceParser:
    """A `ReplyParser` that runs a grammar."""

    def __init__(self, grammar: Callable[[Source], Reading[None]]) -> None:
        """Begin a reply."""
        self._source = Source()
        self._reading = self._read(grammar)
        next(self._reading, None)

    def feed(self, text: str) -> list[Piece]:
        """See `ReplyParser`."""
        source = self._source
        if source.flow is not None and source.watch not in text and text and not text[-1].isspace():
            return [source.flow(text)]
        source.text += text
        next(self._reading, None)
        return source.take()

    def finish(self) -> list[Piece]:
        """See `ReplyParser`."""
        self._source.ended = True
        for _ in self._reading:
            pass
        return self._source.take()

    def _read(self, grammar: Callable[[Source], Reading[None]]) -> Reading[None]:
        yield from grammar(self._source)
        yield from self._source.prose(NO_MARKS)
        self._source.say_rest()
