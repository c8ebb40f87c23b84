"""Walking through a prefix tree by mouse and keyboard, and coming back to where one was by its address."""

import re

import pytest
from playwright.sync_api import Page, expect

from stepwell.dashboard.icicle import Place
from stepwell.dashboard.reading.optimisation import Choice, Plan, read_forest
from stepwell.pool.credit import StepCredit
from stepwell.pool.store import SQLitePool

GROUP = "group-4"


WHERE = re.compile(r"^Tokens [\d,]+ to .* rows$")
"""Heads what is told of the one segment that is looked at."""


@pytest.mark.short
def test_a_click_zooms_into_a_segment_and_the_way_back_leads_out_again(page: Page, pool: SQLitePool) -> None:
    forest = read_forest(pool, Choice(group=GROUP), Plan())
    leaf = forest.tree.segments[-1]
    page.goto(f"/optimisation?group={GROUP}")
    drawn = page.locator("[data-bar]")
    expect(drawn).to_have_count(len(forest.tree.segments))
    page.get_by_label(f"{leaf.stop - leaf.start:,} tokens from position {leaf.depth}, in").last.click()
    expect(page.get_by_text(WHERE)).to_contain_text(f"Tokens {leaf.depth} to")
    expect(drawn).to_have_count(1)
    expect(page).to_have_url(re.compile("step=.*token="))
    address = page.url
    page.get_by_role("navigation", name="Way back").get_by_role("button", name="All").click()
    expect(drawn).to_have_count(len(forest.tree.segments))
    expect(page).not_to_have_url(re.compile("step="))
    page.goto(address)
    expect(page.get_by_text(WHERE)).to_contain_text(f"Tokens {leaf.depth} to")
    expect(drawn).to_have_count(1)


def test_a_leaf_shows_its_text_and_leads_to_its_trajectory(page: Page, pool: SQLitePool) -> None:
    forest = read_forest(pool, Choice(group=GROUP), Plan())
    row = forest.rows[-1]
    place = Place(row.step_id, row.prompt + row.response - 1)
    page.goto(f"/optimisation?group={GROUP}&step={place.step}&token={place.token}")
    leaf = forest.tree.segments[forest.tree.leaves[-1]]
    words = " ".join(f"w{token}" for token in forest.tree.ids[leaf.start : leaf.stop][:5])
    expect(page.get_by_text(re.compile(words)).last).to_be_visible()
    page.get_by_role("link", name=f"{row.trajectory_id}, step {row.index}").click()
    expect(page).to_have_url(re.compile(f"/trajectory/{row.trajectory_id}"))


def test_bars_are_followed_by_keyboard(page: Page) -> None:
    page.goto(f"/optimisation?group={GROUP}")
    page.locator("[data-bar]").last.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("step="))
    expect(page.locator("[data-bar]")).to_have_count(1)


def test_another_choice_is_read_and_is_in_the_address(page: Page, pool: SQLitePool) -> None:
    page.goto("/optimisation?newest=1")
    expect(page.get_by_text("1 group, ")).to_be_visible()
    page.get_by_label("How many").click()
    page.get_by_role("option", name="16", exact=True).click()
    expect(page.get_by_text("16 groups, ")).to_be_visible()
    expect(page).to_have_url(re.compile("newest=16"))
    page.get_by_label("or one group").fill(GROUP)
    page.get_by_role("option", name=GROUP, exact=True).click()
    expect(page.get_by_text("1 group, ")).to_be_visible()
    expect(page).to_have_url(re.compile(f"group={GROUP}"))


def test_the_tree_of_all_that_there_is_stays_a_page_that_one_can_walk(page: Page, pool: SQLitePool) -> None:
    forest = read_forest(pool, Choice(newest=1024), Plan())
    page.goto("/optimisation?newest=1024")
    expect(page.get_by_text(f"{forest.groups} groups, ")).to_be_visible()
    expect(page.locator("[data-bar]").first).to_be_visible()
    assert page.evaluate("document.querySelectorAll('*').length") < 2_000
    page.get_by_label(re.compile("more segments")).first.click()
    expect(page).to_have_url(re.compile("step="))
    expect(page.locator("[data-bar]").first).to_be_visible()


def test_the_tree_of_an_update_is_reached_from_its_page(page: Page, pool: SQLitePool) -> None:
    steps = [step for trajectory in pool.group(GROUP).trajectories for step in trajectory.steps]
    pool.record_credit("grpo-search", 40, [_credit(step.id, step.trajectory_id, step.index) for step in steps[:5]])
    page.goto("/update/grpo-search/40")
    page.get_by_role("link", name="Its prefix tree").click()
    expect(page.get_by_text("What training measured in")).to_be_visible()
    expect(page.get_by_text("1 group, ")).to_be_visible()


def test_it_fits_a_telephone(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto(f"/optimisation?group={GROUP}")
    expect(page.locator("[data-bar]").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def _credit(step_id: str, trajectory_id: str, index: int) -> StepCredit:
    return StepCredit(
        step_id=step_id, trajectory_id=trajectory_id, group_id=GROUP, index=index, tokens=9, advantage=0.5, weight=0.2
    )
