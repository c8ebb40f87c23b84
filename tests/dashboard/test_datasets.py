"""Datasets: listed with where they come from, and written as files that read back."""

import errno
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from nicegui import ui
from nicegui.testing import User, user_simulation

from stepwell.curation.rules import ZeroAdvantage
from stepwell.curation.selection import Selection
from stepwell.dashboard.mounting import register
from stepwell.dashboard.pages.datasets import exporting
from stepwell.dashboard.reading.datasets import FORMATS, VIEWS, Export, write
from stepwell.dashboard.visit import Desk
from stepwell.pool import archive
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Step, TrajectoryInfo
from tests.pool.builders import ready_group


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    pool.put(GroupInfo(id="g", task_id="capital", size=2))
    for number, answer in enumerate(("Marn", "Ilvo")):
        name = f"g-{number}"
        request = json.dumps({"messages": [{"role": "user", "content": "Which city?"}]})
        response = json.dumps({"role": "assistant", "content": answer})
        pool.put(
            TrajectoryInfo(id=name, group_id="g", agent="searcher"),
            Step(
                id=f"s-{number}",
                trajectory_id=name,
                index=0,
                prompt_ids=[1],
                response_ids=[2, 3],
                logprobs=[-1, -1],
                dialect="chat",
                request=request,
                response=response,
            ),
            Annotation.reward("trajectory", name, float(number)),
            Annotation.end(name, "terminated"),
        )
    pool.freeze("d", Selection(rules=(ZeroAdvantage(),)))
    yield pool
    pool.close()


@pytest.mark.parametrize("format", FORMATS)
def test_rows_for_training_are_imported_as_the_records_that_they_were(
    pool: SQLitePool, tmp_path: Path, format: str
) -> None:
    pool.put(Annotation.verdict("trajectory", "g-0", "accept"))
    path = tmp_path / f"out.{format}"
    write(pool, Export(dataset=pool.dataset("d"), format=format, view="rl"), path, lambda _: None)
    other = SQLitePool.open(tmp_path / "other.sqlite")
    other.put(*archive.read(path))
    assert other.group("g") == pool.group("g")
    assert other.notes("g-0") == pool.notes("g-0")
    other.close()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_written_in_every_format(pool: SQLitePool, tmp_path: Path, format: str, view: str) -> None:
    path = tmp_path / f"out.{format}"
    written = write(pool, Export(dataset=pool.dataset("d"), format=format, view=view), path, lambda _: None)
    lines = pq.read_table(path).num_rows if format == "parquet" else len(path.read_text().splitlines())
    assert lines == written.rows >= 1


def test_a_preference_pair_has_the_better_answer_and_an_edit_that_was_taken_back_makes_none(
    pool: SQLitePool, tmp_path: Path
) -> None:
    edit = {"target": "step", "target_id": "s-0", "kind": "feedback", "name": "edit"}
    for number, text in enumerate(("Sova", "")):
        pool.put(Annotation(**edit, text=text))
        path = tmp_path / f"out-{number}.jsonl"
        write(pool, Export(dataset=pool.dataset("d"), format="jsonl", view="preferences"), path, lambda _: None)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        chosen = [row["chosen"][0]["content"] for row in rows]
        assert chosen == (["Ilvo", "Sova"] if text else ["Ilvo"])


def test_a_file_is_called_so_that_every_system_can_save_it(pool: SQLitePool) -> None:
    made = pool.freeze("a b/../c:\n", Selection())
    assert Export(dataset=made, format="jsonl", view="sft").file_name == "a_b_.._c_@1-sft.jsonl"


@pytest.fixture
async def user(pool: SQLitePool) -> AsyncIterator[User]:
    async with user_simulation() as user:
        register(Desk(pool=pool))
        yield user


async def test_datasets_are_listed_and_the_chosen_one_says_where_it_comes_from(user: User, pool: SQLitePool) -> None:
    made = pool.dataset("d")
    await user.open("/datasets?dataset=d")
    (table,) = user.find(ui.table).elements
    (row,) = table.rows
    assert (row["name"], row["unit"], row["units"], row["trajectories"], row["reward"]) == (
        "d@1",
        "group",
        1,
        2,
        0.5,
    )
    for text in ("d@1", made.digest, "searcher", "rule zero advantage: as by default", made.manifest.software):
        await user.should_see(text)


async def test_two_versions_are_compared_by_address(user: User, pool: SQLitePool) -> None:
    pool.put(*ready_group("h"), Annotation.reward("trajectory", "g-0", 0.5))
    pool.freeze("d", Selection())
    await user.open("/datasets?dataset=d@2&before=d@1")
    for text in ("2 added", "h-0", "h-1", "1 changed", "g-0"):
        await user.should_see(text)


@pytest.mark.parametrize("query", ["?dataset=nowhere", "?dataset=%00&before=%00", "?before=d@1"])
async def test_wrong_values_in_the_address_are_ignored(user: User, query: str) -> None:
    await user.open("/datasets" + query)
    await user.should_see("Datasets")
    await user.should_not_see("Download")


async def test_without_a_dataset_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    pool = SQLitePool.open(tmp_path / "empty.sqlite")
    async with user_simulation() as user:
        register(Desk(pool=pool))
        await user.open("/datasets")
        await user.should_see("No dataset yet")
    pool.close()


async def test_a_full_disk_is_told_and_another_try_may_be_made(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_to_a_full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exporting, "write", write_to_a_full_disk)
    await user.open("/datasets?dataset=d")
    user.find(kind=ui.button, content="Download").click()
    await user.should_see("It cannot be written: [Errno 28] No space left on device", retries=100)
    (button,) = user.find(kind=ui.button, content="Download").elements
    assert button.enabled
