"""What was consumed, as it changes, and the way from an update to the steps that it was trained on."""

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from stepwell.curation.selection import Selection
from stepwell.pool.credit import StepCredit
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Step, TrajectoryInfo, UpdateInfo
from tests.ui.conftest import PATIENCE

RUN = "grpo-search"


def test_a_lease_is_shown_while_it_is_held(page: Page, pool: SQLitePool) -> None:
    lease = pool.lease(LeaseSpec(consumer="somebody", limit=3))
    page.goto("/consumption")
    expect(page.get_by_role("cell", name=lease.id)).to_be_visible()
    pool.release(lease.id)
    expect(page.get_by_role("cell", name=lease.id)).to_have_count(0, timeout=PATIENCE)
    again = pool.lease(LeaseSpec(consumer="somebody", limit=2))
    expect(page.get_by_role("cell", name=again.id)).to_be_visible(timeout=PATIENCE)


def test_the_metric_that_is_chosen_is_in_the_address_and_comes_back_with_it(page: Page) -> None:
    page.goto("/consumption")
    page.get_by_label("Metric").fill("entropy")
    page.get_by_role("option", name="entropy").click()
    expect(page).to_have_url(re.compile("metric=entropy"))
    page.reload()
    expect(page.get_by_label("Metric")).to_have_value("entropy")


def test_a_run_is_taken_out_of_the_chart_and_out_of_the_address(page: Page) -> None:
    page.goto("/consumption")
    page.get_by_label("Runs").click()
    page.get_by_role("option", name="rtpo-search").click()
    expect(page).to_have_url(re.compile("runs=grpo-search$"))


def test_a_new_update_appears_by_itself(page: Page, pool: SQLitePool) -> None:
    page.goto("/consumption")
    expect(page.get_by_role("table", name="Updates").or_(page.get_by_label("Updates")).first).to_be_visible()
    pool.put(UpdateInfo(run=RUN, policy_version=77, metrics=(("reward_mean", 0.5),)))
    expect(page.get_by_role("link", name="77")).to_be_visible(timeout=PATIENCE)


@pytest.mark.short
def test_from_an_update_to_its_steps_and_to_a_trajectory(page: Page, pool: SQLitePool) -> None:
    trajectory = pool.trajectory("traj-0-0")
    lines = [
        StepCredit(
            step_id=step.id,
            trajectory_id=step.trajectory_id,
            group_id="group-0",
            index=step.index,
            tokens=len(step.response_ids),
            advantage=0.25,
            weight=0.5,
        )
        for step in trajectory.steps
    ]
    pool.record_credit(RUN, 40, lines)
    page.goto("/consumption")
    page.get_by_role("row", name=re.compile(f"40 {RUN}")).get_by_role("link", name="40").click()
    expect(page).to_have_url(re.compile(f"/update/{RUN}/40"))
    page.get_by_role("link", name="group-0").click()
    expect(page.get_by_text("The steps of group-0")).to_be_visible()
    expect(page.get_by_role("cell", name="0.2500")).to_have_count(len(lines))
    page.get_by_role("link", name="traj-0-0").first.click()
    expect(page).to_have_url(re.compile("/trajectory/traj-0-0"))


def test_it_fits_a_telephone(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    for address in ("/consumption", f"/update/{RUN}/40", "/experiments"):
        page.goto(address)
        expect(page.get_by_role("heading").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, address


def test_names_are_never_markup(page: Page, pool: SQLitePool) -> None:
    attack = "<img src=x onerror=\"document.title='taken'\">{{ 6 * 7 }}"
    pool.put(
        GroupInfo(id=attack, task_id=attack, size=1, channel=attack),
        TrajectoryInfo(id=attack, group_id=attack, agent=attack),
        Step(id=attack, trajectory_id=attack, index=0, prompt_ids=[1], response_ids=[2], logprobs=[-1], model=attack),
        Annotation.reward("trajectory", attack, 1.0),
        Annotation.end(attack, "terminated"),
        UpdateInfo(run=attack, policy_version=1, metrics=((attack, 1.0), ("reward_mean", 0.5))),
    )
    line = StepCredit(step_id=attack, trajectory_id=attack, group_id=attack, index=0, tokens=1, left_out=attack)
    pool.record_credit(attack, 1, [line])
    pool.lease(LeaseSpec(consumer=attack, selection=Selection(channel=attack)))
    name = quote(attack, safe="")
    for address in (
        "/consumption",
        f"/update/{name}/1?group={name}",
        f"/optimisation?group={name}&step={name}&token=0",
        f"/experiments?runs={name}",
    ):
        page.goto(address)
        expect(page.get_by_text(attack).or_(page.get_by_label(attack)).first).to_be_attached(timeout=PATIENCE)
        expect(page.locator("img[src=x]")).to_have_count(0)
        assert page.title() != "taken"
