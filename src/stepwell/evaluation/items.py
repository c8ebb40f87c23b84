"""What one sample of one task came to, and the file that keeps it: a line as soon as it is known, so a kill costs at
most what was under way."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

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
        why=ending.why,
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
        """Go on with the file, or begin it.

        Raises:
            ConfigError: it was made with other settings, which the message names, or is no file of items.
        """
        self._path = path
        self.items: list[Item] = []
        if path.exists():
            self.items = list(self._read(settings))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write([{"settings": settings}], "w")

    def add(self, item: Item) -> None:
        """Keep it; it is on the disk then."""
        self._write([asdict(item)], "a")
        self.items.append(item)

    def _read(self, settings: Mapping[str, Any]) -> Iterator[Item]:
        lines = self._path.read_text(encoding="utf-8").split("\n")
        if lines[-1]:  # a kill came within the last line
            lines[-1] = ""
            self._path.write_text("\n".join(lines), encoding="utf-8")
        try:
            head, *rest = [json.loads(line) for line in lines[:-1]]
            made_with = head["settings"]
            items = [Item(**line) for line in rest]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise ConfigError(f"{self._path} is no file of evaluated items: {error}") from error
        changed = [name for name in {**made_with, **settings} if made_with.get(name) != settings.get(name)]
        if changed:
            said = ", ".join(f"{name} was {made_with.get(name)!r}, is {settings.get(name)!r}" for name in changed)
            raise ConfigError(f"{self._path} was made with other settings ({said}): choose another --out, or remove it")
        yield from items

    def _write(self, lines: Sequence[Mapping[str, Any]], mode: str) -> None:
        with self._path.open(mode, encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())


def read_items(path: Path) -> tuple[Mapping[str, Any], list[Item]]:
    """The settings and the items of a file. Raises ConfigError."""
    try:
        head, *rest = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        settings: Mapping[str, Any] = head["settings"]
        return settings, [Item(**line) for line in rest]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no file of evaluated items: {error}") from error


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
