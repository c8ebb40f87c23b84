"""JSONL: one row per line. Numbers are written with as many digits as bring the same bits back."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from stepwell.pool.archive.flaws import Flaws
from stepwell.pool.archive.table import Row, encode_json

_R = TypeVar("_R")
_PROGRESS: Final = 1000


def write(path: Path, row: type[Row], rows: Iterable[Row], progress: Callable[[int], None]) -> tuple[int, list[Path]]:  # noqa: ARG001 - a row says itself how it is written
    """All rows into one file; `progress` hears the count of rows every thousand. Gives rows and files."""
    count = 0
    with path.open("xb") as file:
        for count, one in enumerate(rows, 1):
            file.write(encode_json(one) + b"\n")
            if count % _PROGRESS == 0:
                progress(count)
    return count, [path]


def lines(path: Path, kind: type[_R], flaws: Flaws) -> Iterator[tuple[int, _R]]:
    """(line number from 1, content) of each line that is JSON of this kind; blank lines are passed over."""
    decode = msgspec.json.Decoder(kind).decode
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                try:
                    yield number, decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    flaws.add(path, number, error)
