"""What is read from an archive, a pool takes as it comes, and once only."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.pool import archive
from stepwell.pool.archive import Entry
from stepwell.pool.base import Pool
from stepwell.pool.store import open_pool
from stepwell.types import Annotation, GroupInfo, Record, TrajectoryInfo
from tests.fakes.models import tiny_renderer
from tests.pool.archive.builders import searching
from tests.pool.archive.test_openai import LINE


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[tuple[Pool, Pool]]:
    opened = open_pool(tmp_path / "a.sqlite"), open_pool(tmp_path / "b.sqlite")
    yield opened
    for pool in opened:
        pool.close()


def _appended(pool: Pool, records: list[Record]) -> list[bool]:
    """Whether each record was stored, or, if False, was there already."""
    receipts = pool.append(records).result()
    assert [receipt.error for receipt in receipts if receipt.error] == []
    return [not receipt.duplicate for receipt in receipts]


def test_a_pool_that_imports_anothers_export_holds_the_same_and_importing_again_is_a_no_op(
    tmp_path: Path, pools: tuple[Pool, Pool]
) -> None:
    group = GroupInfo(id="g", task_id="wells", size=2)
    notes = {
        name: [
            Annotation.reward("trajectory", name, 0.0, "judge"),
            Annotation.reward("trajectory", name, 1.0, "judge"),
            Annotation.reward("step", f"{name}-0", 0.5, "format"),
            Annotation(target="step", target_id=f"{name}-1", kind="feedback", name="edit", text="Better. 井戸"),
            Annotation.end(name, "terminated"),
        ]
        for name in ("t0", "t1")
    }
    first, second = pools
    for name, known in notes.items():
        whole = searching(name, group_id="g")
        _appended(first, [group, TrajectoryInfo(id=name, group_id="g", task_id="wells"), *whole.steps, *known])
    stored = first.group("g")
    entries = [Entry(group=stored.info, trajectory=t, notes=tuple(notes[t.info.id])) for t in stored.trajectories]
    archive.write(tmp_path / "g.parquet", entries)
    records = list(archive.read(tmp_path / "g.parquet"))
    assert all(_appended(second, records))
    assert second.group("g") == stored
    assert not any(_appended(second, records))


def test_a_fine_tuning_file_is_imported_once(tmp_path: Path, pools: tuple[Pool, Pool]) -> None:
    (tmp_path / "tuning.jsonl").write_text(json.dumps(LINE))
    renders = archive.retokenised(tiny_renderer())
    stored = [_appended(pools[0], list(archive.read(tmp_path / "tuning.jsonl", renders=renders))) for _ in range(2)]
    assert [all(stored[0]), any(stored[1])] == [True, False]
