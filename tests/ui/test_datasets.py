"""Datasets in a real browser: chosen, compared, downloaded."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from stepwell.curation.selection import Selection
from stepwell.pool import archive
from stepwell.pool.base import Pool
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation


@pytest.fixture(autouse=True)
def two_versions(pool: Pool) -> None:
    pool.freeze("train", Selection(channel="grpo-search"))
    pool.put(Annotation.reward("trajectory", "traj-0-0", 0.25, "answer"))
    pool.freeze("train", Selection(channel="grpo-search", group_ids=("group-0", "group-2")))


def test_a_version_is_chosen_compared_and_found_again_by_its_address(page: Page, pool: Pool) -> None:
    diff = pool.dataset_diff("train@1", "train@2")
    page.goto("/datasets")
    page.get_by_role("link", name="train@2").click()
    expect(page.get_by_text(pool.dataset("train@2").digest)).to_be_visible()
    page.get_by_label("train@2 against").click()
    page.get_by_role("option", name="train@1").click()
    for _ in range(2):
        expect(page.get_by_text(f"{len(diff.removed):,} removed")).to_be_visible()
        expect(page.get_by_text(f"{len(diff.changed):,} changed")).to_be_visible()
        expect(page.get_by_role("link", name="traj-0-0")).to_be_visible()
        page.wait_for_url("**before=train%401**")
        page.reload()


@pytest.mark.short
def test_rows_are_downloaded_and_read_back_into_another_pool(page: Page, pool: Pool, tmp_path: Path) -> None:
    page.goto("/datasets?dataset=train@2")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "train@2-rl.parquet"
    download.value.save_as(tmp_path / "rows.parquet")
    other = SQLitePool.open(tmp_path / "other.sqlite")
    other.put(*archive.read(tmp_path / "rows.parquet"))
    assert other.count() == pool.dataset("train@2").manifest.trajectories
    assert other.trajectory("traj-0-0") == pool.trajectory("traj-0-0")
    other.close()


def test_conversations_are_downloaded_as_lines(page: Page, pool: Pool, tmp_path: Path) -> None:
    page.goto("/datasets?dataset=train@2")
    page.get_by_label("What is in it").click()
    page.get_by_role("option", name="SFT conversations").click()
    page.get_by_label("Format").click()
    page.get_by_role("option", name="JSON lines").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    download.value.save_as(tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {row["trajectory_id"] for row in rows} <= {
        one.info.id for group in pool.scan_dataset("train@2") for one in group.trajectories
    }
    assert all(row["messages"][-1]["role"] == "assistant" for row in rows)
    expect(page.get_by_text(f"{len(rows)} rows")).to_be_visible()


def test_its_selection_is_opened_where_it_can_be_changed(page: Page) -> None:
    page.goto("/datasets?dataset=train@2")
    page.get_by_role("link", name="Open this selection").click()
    expect(page.get_by_label("Channel")).to_have_value("grpo-search")
    expect(page.get_by_text("Ready of these: 2 groups")).to_be_visible()
