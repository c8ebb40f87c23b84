"""Calls written as JSON objects, read while they are sampled; the arguments are handed on exactly as they were written.

Nothing is parsed but names: whether the arguments are valid JSON is for those to find out who run the tool.
"""

import json
import re
from collections.abc import Collection
from typing import Final

from stepwell.rendering.source import Reading, Source

_STRUCTURE: Final = re.compile(r'["{}\[\],<]')
_IN_STRING: Final = re.compile(r'["\\]')
_ARGUMENTS: Final = ("arguments", "parameters")


class ValueEnd:
    """Finds where a JSON value ends. It ends early, as broken, before a `<` outside of strings."""

    def __init__(self) -> None:
        """Begin at the value's first character."""
        self.found = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def scan(self, text: str, at: int) -> int:
        """The position in `text` behind the value, or behind all of `text` if the value goes on; `at`: where to go on.

        Once the end is found, `found` is true.
        """
        while at < len(text) and not self.found:
            if self._escaped:
                self._escaped = False
                at += 1
            else:
                at = self._in_text(text, at) if self._in_string else self._between(text, at)
        return at

    def _in_text(self, text: str, at: int) -> int:
        match = _IN_STRING.search(text, at)
        if match is None:
            return len(text)
        if match[0] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.found = self._depth == 0
        return match.end()

    def _between(self, text: str, at: int) -> int:
        match = _STRUCTURE.search(text, at)
        if match is None:
            return len(text)
        character = match[0]
        if character == "<" or (self._depth == 0 and character in ",}]"):
            self.found = True
            return match.start()
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.found = self._depth == 0
        return match.end()


def read_value(source: Source) -> Reading[str]:
    """Read a value, as far as it goes, but not for good; its text."""
    end, start = ValueEnd(), source.at
    while True:
        source.at = end.scan(source.text, source.at)
        if end.found or not (yield from source.more()):
            return source.text[start : source.at]


def read_string(source: Source) -> Reading[str | None]:
    """Read a string, not for good; None if there is none, or it is broken."""
    if not (yield from source.accept('"')):
        return None
    source.at -= 1
    text = yield from read_value(source)
    return _decoded(text)


def stream_arguments(source: Source) -> Reading[None]:
    """Read a value and hand it on as the open call's arguments."""
    end = ValueEnd()
    while True:
        source.at = end.scan(source.text, source.at)
        source.argue(source.text[: source.at])
        source.commit()
        if end.found or not (yield from source.more()):
            return


def read_call(source: Source, names: Collection[str] | None = None) -> Reading[bool]:
    """Read `{"name": …, "arguments": …}`; keys in any order, `parameters` means the same, other keys are skipped.

    False if there is no call: then it has a name only. With `names`, only these are calls, and the name must come
    first: that tells a call from an answer which happens to be JSON.
    """
    call = _Call(source, names)
    if not (yield from source.accept("{")):
        return False
    whole = yield from call.read_members()
    if not call.opened:
        return False
    if whole and not call.argued:
        source.argue("{}")
    source.close_call()
    source.commit()
    return True


class _Call:
    def __init__(self, source: Source, names: Collection[str] | None) -> None:
        self._source = source
        self._names = names
        self._early = ""  # arguments that came before the name
        self.opened = False
        self.argued = False

    def read_members(self) -> Reading[bool]:
        """Read behind the opening brace. True if the object is whole, false where it breaks."""
        source = self._source
        while True:
            yield from source.skip_space()
            key = yield from read_string(source)
            if key is None:
                return bool((yield from source.accept("}")))
            yield from source.skip_space()
            if not (yield from source.accept(":")):
                return False
            yield from source.skip_space()
            if not (yield from self._read_member(key)):
                return False
            yield from source.skip_space()
            separator = yield from source.accept(",", "}")
            if separator != ",":
                return separator == "}"

    def _read_member(self, key: str) -> Reading[bool]:
        source = self._source
        if key == "name" and not self.opened:
            name = yield from read_string(source)
            return self._open(name)
        if self._names is not None and not self.opened:
            return False
        if key in _ARGUMENTS and not self.argued:
            self.argued = True
            yield from self._read_arguments()
        else:
            yield from read_value(source)
        return True

    def _open(self, name: str | None) -> bool:
        if not name or (self._names is not None and name not in self._names):
            return False
        self.opened = True
        self._source.open_call(name)
        self._source.argue(self._early)
        return True

    def _read_arguments(self) -> Reading[None]:
        source = self._source
        quoted = bool((yield from source.accept('"')))
        source.at -= quoted
        if self.opened and not quoted:
            source.commit()
            yield from stream_arguments(source)
            return
        text = yield from read_value(source)
        # Some models write the arguments as a string that holds JSON, as the API has it.
        text = (_decoded(text) or text) if quoted else text
        if self.opened:
            source.argue(text)
        else:
            self._early = text


def _decoded(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
        value.encode()  # an escaped lone surrogate is valid JSON, but no text that can be sent
    except (ValueError, AttributeError):
        return None
    return value if isinstance(value, str) else None
