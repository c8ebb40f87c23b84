"""Tasks for an environment of Python functions: rows of a file, or a list of dictionaries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepwell.config import imported
from stepwell.environments.rows import Row, held_out, read_rows
from stepwell.errors import ConfigError, InvalidRecord, InvalidRequest

_TEST_SHARE: Final = 0.2
_SPLITS: Final = ("train", "test")


@dataclass(frozen=True, slots=True)
class Task:
    """A row, and what is known of it."""

    split: str
    prompt: str
    row: Mapping[str, Any]


def named_tasks(reference: str) -> Mapping[str, Task]:
    """The tasks by id: of a file, or of a list that is named.

    Raises:
        ConfigError: there is no such list.
        InvalidRecord: a row is broken; the message has its line.
        MissingDependency: the file cannot be read.
    """
    tasks: dict[str, Task] = {}
    for number, row in enumerate(_rows(reference)):
        identity = row.text("id") if "id" in row.fields else f"row-{number}"
        split = row.fields.get("split", "test" if held_out(row.text("prompt"), _TEST_SHARE) else "train")
        if split not in _SPLITS:
            raise InvalidRecord(f"{row.place}: `split` must be train or test, got {split!r:.80}")
        if identity in tasks:
            raise InvalidRecord(f"{row.place}: `id` {identity!r} occurs twice")
        tasks[identity] = Task(split, row.text("prompt"), row.fields)
    if not tasks:
        raise InvalidRecord(f"{reference} holds no tasks")
    return tasks


def ids_of(tasks: Mapping[str, Task], split: str) -> list[str]:
    """Those of `train` or `test`, in their order. Raises InvalidRequest for another split."""
    if split not in _SPLITS:
        raise InvalidRequest(f"no split {split!r}; use {' or '.join(_SPLITS)}")
    return [key for key, task in tasks.items() if task.split == split]


def type_of(tasks: Mapping[str, Task], task_id: str) -> str:
    """The field `type` of a task's row; empty if it has none."""
    return str(tasks[task_id].row.get("type", "")) if task_id in tasks else ""


def _rows(reference: str) -> Iterable[Row]:
    if reference.endswith((".json", ".jsonl")):
        return read_rows(Path(reference))
    named = imported(reference)
    if not isinstance(named, Sequence) or not all(isinstance(row, Mapping) for row in named):
        raise ConfigError(f"{reference} must be a list of dictionaries, or a file called .jsonl or .json")
    return (Row(f"{reference}, row {number}", row) for number, row in enumerate(named))
