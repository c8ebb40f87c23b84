"""Datasets as files: what an export holds, and what it may be called."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepwell.pool import archive
from stepwell.pool.archive import Entry, Written
from stepwell.pool.base import Pool
from stepwell.pool.frozen import DatasetInfo
from stepwell.types import GroupInfo

FORMATS: Final = {"parquet": "Parquet", "jsonl": "JSON lines"}
"""Formats of one file each, which a browser can download."""
VIEWS: Final = {
    "rl": "RL rows: the exact records, as a pool imports them",
    "sft": "SFT conversations",
    "preferences": "Preference pairs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is written to a file."""

    dataset: DatasetInfo
    format: str
    """One of `FORMATS`."""
    view: str
    """One of `VIEWS`."""

    @property
    def file_name(self) -> str:
        """As the browser saves it."""
        name = re.sub(r"[^\w.-]+", "_", self.dataset.name)
        return f"{name}@{self.dataset.version}-{self.view}.{self.format}"


def full_name(dataset: DatasetInfo) -> str:
    """By which commands and consumers ask for it."""
    return f"{dataset.name}@{dataset.version}"


def write(pool: Pool, export: Export, path: Path, heard: Callable[[int], None]) -> Written:
    """Write the file; `heard` gets the number of rows written so far. Raises NotFound, PoolError and InvalidRecord."""
    view = archive.VIEWS[export.view]()
    found = _entries(pool, full_name(export.dataset), exact=export.view == "rl")
    return archive.write(path, found, format=export.format, view=view, progress=heard)


def _entries(pool: Pool, name: str, *, exact: bool) -> Iterator[Entry]:
    """Every trajectory with its group and what was said of it; `exact`: all that ever was."""
    infos: dict[str, GroupInfo] = {}
    for unit in pool.scan_dataset(name):
        for trajectory in unit.trajectories:
            group_id = trajectory.info.group_id
            if group_id is not None and group_id not in infos:
                infos[group_id] = pool.group_info(group_id)
            group = infos[group_id] if group_id is not None else None
            notes = tuple(pool.notes(trajectory.info.id)) if exact else trajectory.annotations
            yield Entry(group=group, trajectory=trajectory, notes=notes)
