"""A trajectory in a real browser: going through its steps by keys, some at a time, and all that is known of each."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from stepwell.dashboard.pages.trajectory.steps import AT_ONCE
from stepwell.dashboard.reading.credit import read_credit
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, TrajectoryInfo
from tests.pool.builders import make_step

MANY = 2 * AT_ONCE + 20


def long_one(pool: SQLitePool) -> None:
    """A trajectory of `MANY` steps, still open."""
    pool.put(TrajectoryInfo(id="long"), *(make_step("long", index) for index in range(MANY)))


def at(page: Page, index: int) -> None:
    expect(page.locator(f'[data-step="{index}"]')).to_be_focused()
    expect(page).to_have_url(re.compile(f"[?&]step={index}(&|$)"))


@pytest.mark.short
def test_keys_go_from_step_to_step(page: Page, pool: SQLitePool) -> None:
    long_one(pool)
    page.goto("/trajectory/long?step=1")
    at(page, 1)
    for key, index in (("j", 2), ("ArrowRight", 3), ("k", 2), ("ArrowLeft", 1), ("k", 0), ("k", 0)):
        page.keyboard.press(key)
        at(page, index)
    page.reload()
    at(page, 0)


def test_keys_read_on_where_the_drawn_steps_end(page: Page, pool: SQLitePool) -> None:
    long_one(pool)
    page.goto("/trajectory/long")
    expect(page.locator("[data-step]")).to_have_count(AT_ONCE)
    page.locator(f'[data-step="{AT_ONCE - 1}"]').focus()
    page.keyboard.press("j")
    at(page, AT_ONCE)
    expect(page.locator("[data-step]")).to_have_count(2 * AT_ONCE)
    page.get_by_role("button", name=f"Show {MANY - 2 * AT_ONCE} more steps").click()
    at(page, 2 * AT_ONCE)
    expect(page.locator("[data-step]")).to_have_count(MANY)


def test_a_deep_link_draws_the_steps_around_its_own(page: Page, pool: SQLitePool) -> None:
    long_one(pool)
    page.goto(f"/trajectory/long?step={MANY - 1}")
    at(page, MANY - 1)
    expect(page.locator('[data-step="0"]')).to_have_count(0)
    page.get_by_role("button", name="earlier steps").click()
    expect(page.locator(f'[data-step="{MANY - AT_ONCE}"]')).to_be_attached()
    for wrong in ("x", "-1", str(10**30)):
        page.goto(f"/trajectory/long?step={wrong}")
        expect(page.locator('[data-step="0"]')).to_be_attached()


def test_who_sees_the_end_sees_it_grow(page: Page, pool: SQLitePool) -> None:
    long_one(pool)
    page.goto("/trajectory/long")
    page.get_by_role("button", name="Go to the newest").click()
    at(page, MANY - 1)
    pool.put(make_step("long", MANY))
    expect(page.locator(f'[data-step="{MANY}"]')).to_be_attached()


def test_help_lists_the_keys_and_fields_keep_theirs(page: Page, pool: SQLitePool) -> None:
    long_one(pool)
    page.goto("/trajectory/long?step=0")
    at(page, 0)
    page.keyboard.press("?")
    expect(page.get_by_text("next step")).to_be_visible()
    for key in ("j", "r", "a"):
        page.keyboard.press(key)
    page.keyboard.press("Escape")
    expect(page.get_by_text("next step")).to_be_hidden()
    expect(page).to_have_url(re.compile("step=0"))
    page.keyboard.press("j")
    at(page, 1)
    assert pool.trajectory("long").verdict == "clear"


def test_credit_by_an_algorithm_is_what_it_gives(page: Page, pool: SQLitePool) -> None:
    shown = next(
        found
        for _, summary in pool.trajectories(limit=500)
        if summary.info.group_id and (found := (summary.info.id, read_credit(pool, "grpo", summary.info)))[1].by_step
    )
    page.goto(f"/trajectory/{shown[0]}")
    page.get_by_role("combobox", name="Credit by algorithm").click()
    page.get_by_role("option", name="grpo", exact=True).click()
    for advantage in shown[1].by_step.values():
        expect(page.get_by_text(f"credit {advantage.mean:+.3f}").first).to_be_visible()
    expect(page).to_have_url(re.compile("credit=grpo"))
    page.goto(f"/trajectory/{shown[0]}?credit=steppo")
    expect(page.get_by_text("steppo also reads a critic's values, which only a training run computes")).to_be_visible()


def test_rewards_and_remarks_of_a_step_appear_where_it_is(page: Page, pool: SQLitePool) -> None:
    page.goto("/trajectory/traj-0-0")
    step = pool.trajectory("traj-0-0").steps[0]
    card = page.locator('[data-step="0"]')
    expect(card).to_be_visible()
    pool.put(Annotation.reward("step", step.id, 0.375, "style"))
    pool.put(Annotation(target="step", target_id=step.id, kind="note", name="review", text="<b>well</b> done"))
    expect(card.get_by_text("style 0.375")).to_be_visible()
    expect(card.get_by_text("<b>well</b> done")).to_be_visible()


def test_the_raw_request_is_shown_with_indentation(page: Page, pool: SQLitePool) -> None:
    step = pool.trajectory("traj-0-0").steps[0]
    page.goto("/trajectory/traj-0-0")
    card = page.locator('[data-step="0"]')
    card.get_by_text("Raw prompt, request and response").click()
    shown = card.get_by_role("region", name="Request, as the client sent it")
    expect(shown).to_contain_text(json.dumps(json.loads(step.request), indent=2))
    expect(card.get_by_role("region", name="Prompt, as the engine was given it")).to_contain_text(
        f"w{step.prompt_ids[0]}"
    )


def test_relatives_can_be_walked_to(page: Page, pool: SQLitePool) -> None:
    pool.put(GroupInfo(id="anew", task_id="", size=1, origin_id="traj-0-0", origin_index=1))
    pool.put(TrajectoryInfo(id="sibling", group_id="anew", source="fork"), make_step("sibling", 1))
    page.goto("/trajectory/sibling")
    page.get_by_role("link", name="traj-0-0").click()
    at(page, 1)
    page.get_by_text("Sets of siblings that were forked from it: 1").click()
    page.get_by_role("link", name="step 1 anew").click()
    page.get_by_role("link", name="sibling").click()
    expect(page.get_by_role("heading", name="sibling")).to_be_visible()
    page.goto("/trajectory/traj-0-0")
    page.get_by_text("Its group: 8 trajectories").click()
    page.get_by_role("row", name="traj-0-3").get_by_role("link", name="compare with this one").click()
    expect(page).to_have_url(re.compile(r"/compare\?left=traj-0-0&right=traj-0-3"))


def test_branches_of_a_trajectory_lead_to_their_steps(page: Page, pool: SQLitePool) -> None:
    first = make_step("forked", 0, fork="root")
    second, other = (
        make_step("forked", 1, parent_id=first.id),
        make_step("forked", 2, parent_id=first.id, fork="client"),
    )
    pool.put(TrajectoryInfo(id="forked"), first, second, other)
    page.goto("/trajectory/forked")
    page.get_by_text("Its steps form 2 branches").click()
    expect(page.get_by_text("parts from step 0: the client sent another history")).to_be_visible()
    page.get_by_role("button", name="Step 2", exact=True).click()
    at(page, 2)
