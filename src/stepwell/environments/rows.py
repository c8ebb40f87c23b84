"""Reading tasks from files: rows of JSON whose mistakes are named by their line."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.errors import InvalidRecord, MissingDependency


@dataclass(frozen=True, slots=True)
class Row:
    """An object of a file."""

    place: str
    """Where it is, in words for an error."""
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A field that is a text, or a whole number in its place. Raises InvalidRecord if it is missing or empty."""
        value = self.fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str) or not value.strip():
            missing = (
                "is missing" if name not in self.fields else f"must be a text that is not empty, got {value!r:.80}"
            )
            raise InvalidRecord(f"{self.place}: `{name}` {missing}; its fields are {', '.join(self.fields) or 'none'}")
        return value


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSON list or of JSON lines; empty lines are none.

    Raises:
        MissingDependency: the file cannot be read.
        InvalidRecord: it is no UTF-8, or a row is no JSON object; the message has the line, or the index in the list.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingDependency(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidRecord(f"{path}, line {line}: not UTF-8") from error
    for place, value in _listed(path, text) if text.lstrip().startswith("[") else _lines(path, text):
        if not isinstance(value, dict):
            raise InvalidRecord(f"{place}: expected an object, got {type(value).__name__}")
        yield Row(place, value)


def held_out(text: str, share: float) -> bool:
    """Whether a task belongs to the `share` of all that is kept for tests: a matter of its text alone."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _listed(path: Path, text: str) -> Iterator[tuple[str, object]]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"{path} is not a JSON list: {error}") from error
    yield from ((f"{path}, row {index}", value) for index, value in enumerate(values))


def _lines(path: Path, text: str) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield f"{path}, line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRecord(f"{path}, line {number}: not JSON: {error}") from error
