"""A pool's data as files: export in several formats and views, import of our own files and of common other ones.

What a format or a view is called is said in the two tables below; the columns are in docs/reference/archive.md.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from stepwell.errors import InvalidRequest
from stepwell.pool.archive import hf, jsonl, openai, otel, parquet
from stepwell.pool.archive.entries import Entry, Item, entries
from stepwell.pool.archive.flaws import Flaw, Flaws, OnError
from stepwell.pool.archive.imported import Renders, retokenised
from stepwell.pool.archive.table import Row
from stepwell.pool.archive.views import View
from stepwell.pool.archive.views.preferences import Preferences
from stepwell.pool.archive.views.rl import Exact, StepRow, records
from stepwell.pool.archive.views.sft import Conversations
from stepwell.pool.archive.whole import whole
from stepwell.types import Record

__all__ = [
    "FORMATS",
    "VIEWS",
    "Conversations",
    "Entry",
    "Exact",
    "Flaw",
    "Flaws",
    "Item",
    "Preferences",
    "Reading",
    "Renders",
    "View",
    "Written",
    "guess",
    "read",
    "retokenised",
    "write",
]

Progress = Callable[[int], None]
"""Is told how many rows are written so far, now and then."""
_SIGN: Final = "trajectory_created_at"
"""A column that an export in the view `rl` has, and nothing else."""


class Writes(Protocol):
    """Writes rows to a path; gives their count and the files."""

    def __call__(
        self, path: Path, row: type[Row], rows: Iterable[Row], progress: Progress
    ) -> tuple[int, list[Path]]: ...


def _read_parquet(path: Path, flaws: Flaws, renders: Renders | None) -> Iterator[Record]:  # noqa: ARG001
    return records(((path, number, row) for number, row in parquet.read(path, StepRow, flaws, _SIGN)), flaws)


def _read_jsonl(path: Path, flaws: Flaws, renders: Renders | None) -> Iterator[Record]:  # noqa: ARG001
    return records(((path, number, row) for number, row in jsonl.lines(path, StepRow, flaws)), flaws)


def _read_hf(path: Path, flaws: Flaws, renders: Renders | None) -> Iterator[Record]:  # noqa: ARG001
    return records(hf.read(path, StepRow, flaws, _SIGN), flaws)


def _read_openai(path: Path, flaws: Flaws, renders: Renders | None) -> Iterator[Record]:
    return openai.read(path, flaws, _needed(renders))


def _read_otel(path: Path, flaws: Flaws, renders: Renders | None) -> Iterator[Record]:
    return otel.read(path, flaws, _needed(renders))


def _needed(renders: Renders | None) -> Renders:
    if renders is None:
        raise InvalidRequest("this file holds text only, so its token ids need a model's tokenizer: name the model")
    return renders


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of file."""

    about: str
    read: Callable[[Path, Flaws, Renders | None], Iterator[Record]]
    write: Writes | None = None
    """None: it is only read."""


FORMATS: Final[Mapping[str, Format]] = {
    "parquet": Format(about="one Parquet file", read=_read_parquet, write=parquet.write),
    "jsonl": Format(about="one JSON object per line", read=_read_jsonl, write=jsonl.write),
    "hf": Format(about="a folder for Hugging Face `datasets`", read=_read_hf, write=hf.write),
    "openai": Format(about="OpenAI's fine-tuning files", read=_read_openai),
    "otel": Format(about="OpenTelemetry spans of model calls, OTLP JSON", read=_read_otel),
}
"""Formats by name. Those that are written are read again, in the view `rl`."""

VIEWS: Final[Mapping[str, type[View]]] = {"rl": Exact, "sft": Conversations, "preferences": Preferences}
"""Views by name, each with settings of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an export came to."""

    rows: int
    files: tuple[Path, ...]
    bytes: int
    skipped: tuple[tuple[str, int], ...] = ()
    """(reason, how many) of what the view left out."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An import under way: iterate over it once; then `flaws` tells what was skipped."""

    format: str
    flaws: Flaws
    _records: Iterator[Record] = field(repr=False)

    def __iter__(self) -> Iterator[Record]:
        """The records, in an order that a pool takes. Raises InvalidRecord at the first flaw if flaws are fatal."""
        return self._records


def write(
    path: Path | str,
    items: Iterable[Item],
    *,
    format: str | None = None,
    view: View | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write `items` to a file, or folder, at `path`, which is there as a whole or, after any error, not at all.

    Memory does not grow with the number of items.

    Args:
        path: Where nothing is yet.
        items: Trajectories, groups, or, for the view `rl`, entries with all their annotations; see `Item`.
        format: A key of `FORMATS`; None: `hf` for a path without suffix, else as the suffix says.
        view: What to write, an object of one of `VIEWS`; None: the exact records.
        progress: See `Progress`.

    Raises:
        Conflict: there is something at `path`.
        InvalidRequest: no such format, or one that is only read; no folder to write into.
        InvalidRecord: an item cannot be written in this view.
    """
    target, chosen = Path(path), view or Exact()
    name = format or {".parquet": "parquet", ".jsonl": "jsonl", "": "hf"}.get(Path(path).suffix, "")
    save = FORMATS[name].write if name in FORMATS else None
    if save is None:
        writable = ", ".join(name for name, kind in FORMATS.items() if kind.write)
        raise InvalidRequest(f"{name or target.suffix!r} is no format to write; choose one of {writable}")
    skipped: Counter[str] = Counter()
    with whole(target) as partial:
        count, files = save(partial, chosen.row, chosen.rows(entries(items), skipped), progress or _unheard)
        size = sum(file.stat().st_size for file in files)
    placed = tuple(target / file.relative_to(partial) for file in files)
    return Written(rows=count, files=placed, bytes=size, skipped=tuple(sorted(skipped.items())))


def _unheard(rows: int) -> None:
    """Progress that nobody asked for."""


def read(
    path: Path | str, *, format: str | None = None, on_error: OnError = "stop", renders: Renders | None = None
) -> Reading:
    """The records in a file or folder; appending them twice to a pool is the same as once.

    Args:
        path: The file, or the folder of format `hf`.
        format: A key of `FORMATS`; None: as `guess` says.
        on_error: What a malformed line does: `stop` raises, `skip` counts it in the result's `flaws`.
        renders: Gives text its token ids, for formats that hold text only; see `retokenised`.

    Raises:
        InvalidRequest: there is no such file or format, or the format needs `renders`.
        InvalidRecord (while iterating): the file is not of this format, or, with `stop`, has a flaw.
    """
    source = Path(path)
    if not source.exists():
        raise InvalidRequest(f"there is no {source}")
    name = format or guess(source)
    if name not in FORMATS:
        raise InvalidRequest(f"there is no format {name!r}; choose one of {', '.join(FORMATS)}")
    flaws = Flaws(on_error)
    return Reading(name, flaws, FORMATS[name].read(source, flaws, renders))


def guess(path: Path) -> str:
    """The format of what is at `path`: by being a folder, by its suffix, else by its first line.

    Raises:
        InvalidRequest: it is none that is known.
    """
    if path.is_dir():
        return "hf"
    if path.suffix == ".parquet":
        return "parquet"
    signs = {"resourceSpans": "otel", "messages": "openai", _SIGN: "jsonl", "group_created_at": "jsonl"}
    with path.open("rb") as file:
        line = next((line for line in file if not line.isspace()), b"")
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        first = None
    found = next((name for sign, name in signs.items() if isinstance(first, dict) and sign in first), None)
    if found is None:
        raise InvalidRequest(f"cannot tell the format of {path}; choose one of {', '.join(FORMATS)}")
    return found
