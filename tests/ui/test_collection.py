"""Collection in a real browser: the figures of a window, what arrives while one looks, and the way to what is live."""

import re
import time

import pytest
from playwright.sync_api import Page, expect

from stepwell.dashboard.reading.collection import read_collection
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, TrajectoryInfo
from tests.pool.builders import make_step


def test_a_window_is_chosen_by_a_click_and_kept_in_the_address(page: Page, pool: SQLitePool) -> None:
    everything = read_collection(pool, "all", time.time())
    page.goto("/collection?window=nonsense")
    expect(page.get_by_role("button", name="1 h", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="all", exact=True).click()
    expect(page.get_by_text(f"{everything.steps:,}", exact=True).first).to_be_visible()
    expect(page).to_have_url(re.compile(r"/collection\?window=all$"))
    page.reload()
    expect(page.get_by_text(f"{everything.response_tokens:,}", exact=True)).to_be_visible()
    for origin in pool.origins():
        expect(page.get_by_role("cell", name=origin.channel).first).to_be_visible()


def test_what_arrives_is_shown_while_one_looks(page: Page, pool: SQLitePool) -> None:
    page.goto("/collection?window=15 min")
    expect(page.get_by_role("cell", name="newcomer")).to_have_count(0)
    pool.put(TrajectoryInfo(id="fresh", agent="newcomer"), make_step("fresh", finish_reason="abort"))
    expect(page.get_by_role("cell", name="newcomer").first).to_be_visible()
    expect(page.get_by_role("row", name="step aborted")).to_be_visible()
    pool.put(Annotation.end("fresh", "failed", "the sky fell"), GroupInfo(id="lost", task_id="", size=1))
    pool.drop_group("lost", "all alike")
    expect(page.get_by_role("row", name="the sky fell")).to_be_visible()
    expect(page.get_by_role("row", name="all alike")).to_be_visible()


@pytest.mark.short
def test_an_open_session_is_followed_by_a_click(page: Page, pool: SQLitePool) -> None:
    pool.put(TrajectoryInfo(id="at-work"), make_step("at-work"))
    page.goto("/collection")
    page.get_by_role("link", name="at-work").click()
    expect(page.get_by_text("live: new steps appear below")).to_be_visible()
    expect(page.get_by_role("heading", name="Step 0")).to_be_visible()
    pool.put(make_step("at-work", 1))
    expect(page.get_by_role("heading", name="Step 1")).to_be_visible()
    pool.put(Annotation.end("at-work", "terminated"))
    expect(page.get_by_text("live: new steps appear below")).to_have_count(0)
