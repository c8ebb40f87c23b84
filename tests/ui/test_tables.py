"""Whatever changes on a page, what one is about to click or has the focus stays where it is."""

import re

import pytest
from playwright.sync_api import Page, expect

from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.types import UpdateInfo


@pytest.mark.short
def test_a_link_in_a_table_is_the_same_after_the_page_has_changed(page: Page, pool: SQLitePool) -> None:
    page.goto("/consumption")
    link = page.get_by_role("link", name="40").first
    link.focus()
    page.evaluate("window.before = document.activeElement")
    lease = pool.lease(LeaseSpec(consumer="somebody", limit=2))
    expect(page.get_by_role("cell", name=lease.id)).to_be_visible()
    pool.put(UpdateInfo(run="grpo-search", policy_version=77, metrics=(("reward_mean", 0.5),)))
    expect(page.get_by_role("link", name="77")).to_be_visible()
    assert page.evaluate("window.before.tagName === 'A' && document.activeElement === window.before")


@pytest.mark.short
def test_a_click_that_a_change_of_its_row_falls_into_still_counts(page: Page, pool: SQLitePool) -> None:
    page.goto("/consumption")
    row = page.get_by_role("row", name=re.compile("^40 grpo-search"))
    link = row.get_by_role("link")
    link.scroll_into_view_if_needed()
    box = link.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    pool.put(UpdateInfo(run="grpo-search", policy_version=40, metrics=(("reward_mean", 0.123),)))
    expect(row).to_contain_text("0.123")
    page.mouse.up()
    expect(page).to_have_url(re.compile("/update/grpo-search/40"))


@pytest.mark.short
def test_a_table_is_sorted_by_the_keyboard_too_and_says_how(page: Page) -> None:
    page.goto("/experiments")
    head = page.get_by_role("columnheader", name="Last reward")
    expect(head).not_to_have_attribute("aria-sort", re.compile("."))
    head.focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    page.keyboard.press("Space")
    expect(head).to_have_attribute("aria-sort", "descending")
