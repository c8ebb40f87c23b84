"""What one sample of one task came to, and the file that keeps it: a line as soon as it is known, so a kill costs at
most what was under way."""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from stepwell.errors import ConfigError
from stepwell.rollout.run import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One trajectory of an evaluation."""

    task: str
    sample: int
    """0 for the first trajectory of its task."""
    kind: str
    """Of the task, where there are several; else empty."""
    how: str
    """`terminated`, `truncated`, or `failed`."""
    why: str
    trajectory_id: str
    reward: float
    measured: Mapping[str, float]
    """Parts of the reward, and what the environment measured beside them."""
    turns: int
    tool_calls: int
    invalid_calls: int
    prompt_tokens: int
    response_tokens: int
    seconds_policy: float
    seconds_environment: float

    def score(self, name: str) -> float:
        """What was measured under `name`; 0 where the episode failed or ended before anything was: not solved."""
        return self.reward if name == "reward" else self.measured.get(name, 0.0)


def item_of(ending: Ending, sample: int, kind: str) -> Item:
    """A trajectory's item."""
    return Item(
        task=ending.task_id,
        sample=sample,
        kind=kind,
        how=ending.how,
        why=ending.why.encode(errors="replace").decode(),  # lone surrogates of somebody's message
        trajectory_id=ending.trajectory_id,
        reward=ending.reward,
        measured=dict(ending.measured),
        turns=ending.turns,
        tool_calls=ending.tool_calls,
        invalid_calls=ending.invalid_calls,
        prompt_tokens=ending.prompt_tokens,
        response_tokens=ending.response_tokens,
        seconds_policy=ending.policy_seconds,
        seconds_environment=ending.environment_seconds,
    )


class ItemFile:
    """Items as JSON lines, under the settings that they were made with."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Go on with the file, or begin it; nobody else can until this one is closed.

        Raises:
            ConfigError: it was made with other settings, which the message names; it is no file of items; another
                process adds to it; it cannot be written.
        """
        self._path = path
        self._file = _opened(path)
        try:
            whole = _whole_lines(self._file.read())
            self.items: list[Item] = []
            self._file.seek(0)
            self._file.truncate(len("".join(line + "\n" for line in whole).encode()))  # a kill came within a line
            self._file.seek(0, os.SEEK_END)
            if whole:
                made_with, self.items = _parsed(path, whole)
                _require_same(path, made_with, settings)
            else:
                self._write({"settings": settings})
        except BaseException:
            self._file.close()
            raise

    def add(self, item: Item) -> None:
        """Keep it; it is on the disk then."""
        self._write(asdict(item))
        self.items.append(item)

    def close(self) -> None:
        """Let others add to it."""
        self._file.close()

    def __enter__(self) -> "ItemFile":
        """Closed at the end of a `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_items(path: Path) -> tuple[Mapping[str, Any], list[Item]]:
    """The settings and the items of a file, also while somebody adds to it. Raises ConfigError."""
    try:
        return _parsed(path, _whole_lines(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _opened(path: Path) -> TextIO:
    """For reading and appending, by this process alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"cannot write to {path}: {error.strerror}; choose another folder") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the system when the process dies
    except OSError as error:
        file.close()
        raise ConfigError(f"another process adds to {path}: wait for it, or choose another folder") from error
    file.seek(0)
    return file


def _whole_lines(text: str) -> list[str]:
    """Without a last one that was never finished."""
    return text.split("\n")[:-1]


def _parsed(path: Path, lines: Sequence[str]) -> tuple[Mapping[str, Any], list[Item]]:
    try:
        head, *rest = [json.loads(line) for line in lines]
        settings: Mapping[str, Any] = head["settings"]
        return settings, [Item(**line) for line in rest]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no file of evaluated items: {error}") from error


def _require_same(path: Path, made_with: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    changed = [name for name in {**made_with, **settings} if made_with.get(name) != settings.get(name)]
    if changed:
        said = ", ".join(f"{name} was {made_with.get(name)!r}, is {settings.get(name)!r}" for name in changed)
        raise ConfigError(f"{path} was made with other settings ({said}): choose another folder, or remove it")


def write_parquet(path: Path, items: Iterable[Item]) -> None:
    """One row per item, one column per field; each measured value has a column `measured_NAME`, null where absent."""
    rows = sorted(items, key=lambda item: (item.task, item.sample))
    names = sorted({name for item in rows for name in item.measured})
    columns = {
        field.name: [getattr(item, field.name) for item in rows] for field in fields(Item) if field.name != "measured"
    }
    columns |= {f"measured_{name}": [item.measured.get(name) for item in rows] for name in names}
    partial = path.with_suffix(".partial")
    pq.write_table(pa.table(columns), partial)
    partial.rename(path)
