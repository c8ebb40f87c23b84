"""Search and filter in a real browser: each condition leaves what it should, and the address brings it back."""

import re

import pytest
from playwright.sync_api import Page, expect

from stepwell.curation.selection import Selection
from stepwell.dashboard.reading.representation import EVERY, PAGE
from stepwell.pool.store import SQLitePool


def expected(pool: SQLitePool, **wish: object) -> list[str]:
    """Ids of the first page of what is wished for."""
    found = pool.trajectories(Selection.model_validate({"verdicts": EVERY, **wish}), limit=PAGE)
    assert found, "a condition that nothing meets shows little"
    return [summary.info.id for _, summary in found]


def expect_results(page: Page, ids: list[str]) -> None:
    expect(page.locator("tbody tr td:first-child")).to_have_text(ids)


def choose(page: Page, field: str, *options: str) -> None:
    page.get_by_role("combobox", name=field, exact=True).click()
    for option in options:
        page.get_by_role("option", name=option, exact=True).click()
    page.keyboard.press("Escape")


@pytest.mark.short
def test_words_are_searched_for_as_one_types(page: Page, pool: SQLitePool) -> None:
    page.goto("/representation")
    expect_results(page, expected(pool))
    page.get_by_label("Words to search for").fill("Marn LANTERN")
    expect_results(page, expected(pool, text="marn lantern"))
    expect(page).to_have_url(re.compile("text=Marn"))
    page.reload()
    expect_results(page, expected(pool, text="marn lantern"))
    page.get_by_role("button", name="Clear conditions").click()
    expect_results(page, expected(pool))


def test_conditions_hold_together_and_are_in_the_address(page: Page, pool: SQLitePool) -> None:
    page.goto("/representation")
    page.get_by_text("Conditions", exact=True).click()
    choose(page, "Status", "terminated", "truncated")
    choose(page, "Agent", "coder")
    choose(page, "Channel", "rtpo-search")
    page.get_by_label("Least reward").fill("0.5")
    page.get_by_label("Most steps").fill("3")
    wish = {"statuses": ("terminated", "truncated"), "agents": ("coder",), "channel": "rtpo-search"}
    wished = expected(pool, **wish, min_reward=0.5, max_steps=3)
    expect_results(page, wished)
    expect(page).to_have_url(re.compile("max_steps=3"))  # the browser tells of a new address when it likes
    page.goto(page.url)
    expect_results(page, wished)
    expect(page.get_by_label("Least reward")).to_have_value("0.5")


@pytest.mark.parametrize(
    ("query", "wish"),
    [
        ("verdicts=reject", {"verdicts": ("reject",)}),
        ("tags=interesting", {"tags": ("interesting",)}),
        ("sources=gateway&without_tags=interesting", {"sources": ("gateway",), "without_tags": ("interesting",)}),
        ("min_policy_version=5&max_policy_version=9", {"min_policy_version": 5, "max_policy_version": 9}),
        ("task_ids=question-3", {"task_ids": ("question-3",)}),
        ("min_reward=lots&statuses=failed", {"statuses": ("failed",)}),
    ],
)
def test_an_address_says_what_is_shown(page: Page, pool: SQLitePool, query: str, wish: dict[str, object]) -> None:
    page.goto(f"/representation?{query}")
    expect_results(page, expected(pool, **wish))


def test_times_are_those_of_the_viewer(page: Page, pool: SQLitePool) -> None:
    opened = pool.trajectory("traj-20-0").info.created_at
    minute = opened // 60 * 60
    page.goto("/representation")
    page.get_by_text("Conditions", exact=True).click()
    there = page.evaluate("seconds => new Date((seconds + 20700) * 1000).toISOString().slice(0, 16)", minute)
    page.get_by_label("Opened before").fill(there)  # in Kathmandu, 5:45 h ahead
    expect_results(page, expected(pool, created_before=minute))


def test_pages_lead_to_older_ones_and_back(page: Page, pool: SQLitePool) -> None:
    newest = pool.trajectories(limit=PAGE)
    older = [summary.info.id for _, summary in pool.trajectories(before=newest[-1][0], limit=PAGE)]
    page.goto("/representation")
    page.get_by_role("button", name="Older").click()
    expect_results(page, older)
    page.reload()
    expect_results(page, older)
    page.get_by_role("button", name="Newer").click()
    expect_results(page, [summary.info.id for _, summary in newest])
    expect(page.get_by_role("button", name="Newer")).to_be_hidden()


def test_an_id_leads_straight_to_its_place(page: Page, pool: SQLitePool) -> None:
    page.goto("/representation")
    page.get_by_label("Id to go to").fill("nothing-at-all")
    page.get_by_role("button", name="Go to this id").click()
    expect(page.get_by_text("Nothing in this pool has the id 'nothing-at-all'.")).to_be_visible()
    page.get_by_label("Id to go to").fill("resp_step-traj-3-1-1")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/trajectory/traj-3-1\?step=1$"))
    expect(page.locator('[data-step="1"]')).to_be_focused()
    page.goto("/representation")
    page.get_by_label("Id to go to").fill("group-4")
    page.keyboard.press("Enter")
    expect_results(page, expected(pool, group_ids=("group-4",)))


def test_what_nothing_meets_says_so(page: Page) -> None:
    page.goto("/representation?min_reward=1000")
    expect(page.get_by_text("No trajectory is like that.")).to_be_visible()
