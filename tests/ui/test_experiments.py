"""Choosing what is compared, by clicking; the address carries it."""

import re

from playwright.sync_api import Page, expect

from stepwell.pool.store import SQLitePool
from stepwell.types import UpdateInfo


def test_what_is_chosen_is_in_the_address_and_comes_back_with_it(page: Page) -> None:
    page.goto("/experiments")
    page.get_by_label("Over").click()
    page.get_by_role("option", name="hours since the run's first update").click()
    page.get_by_role("checkbox", name="Average runs that differ only in their seed").click()
    expect(page).to_have_url(re.compile("x=hours.*seeds=mean"))
    page.reload()
    expect(page.get_by_role("checkbox", name="Average runs")).to_be_checked()
    expect(page.get_by_label("Over")).to_have_value(re.compile("hours"))


def test_a_run_that_begins_appears_by_itself(page: Page, pool: SQLitePool) -> None:
    page.goto("/experiments")
    expect(page.get_by_role("cell", name="rtpo-search")).to_be_visible()
    pool.put(UpdateInfo(run="another", policy_version=1, metrics=(("reward_mean", 0.123), ("sampled_tokens", 4567.0))))
    expect(page.get_by_role("cell", name="another")).to_be_visible()
    expect(page.get_by_role("cell", name="4,567")).to_be_visible()


def test_without_recipes_the_page_says_why_settings_are_not_compared(page: Page) -> None:
    page.goto("/experiments")
    expect(page.get_by_text("The settings of these runs cannot be compared")).to_be_visible()
