"""Curation in a real browser: what people do there changes what is trained on."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from stepwell.curation.rules import Length
from stepwell.curation.selection import Selection
from stepwell.pool.base import Pool
from stepwell.pool.lease import LeaseSpec
from stepwell.types import Annotation
from tests.ui.conftest import PATIENCE, serve

ONE = "traj-0-0"
Press = Callable[[Page], None]


def judging(**wish: object) -> str:
    """The address of the queue of what a selection matches."""
    return f"/curation?{urlencode({'tab': 'judge', 'judged': 'True', 'selection': json.dumps(wish)})}"


def served(pool: Pool, consumer: str, **wish: object) -> list[str]:
    """Ids of the trajectories that a fresh consumer is handed."""
    spec = LeaseSpec.model_validate({"consumer": consumer, "unit": "trajectory", "limit": 10_000, **wish})
    return [trajectory.info.id for group in pool.lease(spec).groups for trajectory in group.trajectories]


def verdicts(pool: Pool, trajectory_id: str) -> list[str]:
    return [note.name for note in pool.notes(trajectory_id) if note.kind == "verdict"]


def name_it(page: Page, name: str) -> None:
    field = page.get_by_label("Name", exact=True)
    field.fill(name)
    field.press("Enter")


@pytest.mark.short
def test_a_key_rejects_for_training_and_undo_brings_it_back(page: Page, pool: Pool) -> None:
    before = verdicts(pool, ONE)
    page.goto(judging(trajectory_ids=[ONE]))
    expect(page.get_by_text(f"task {pool.trajectory(ONE).info.task_id}")).to_be_visible()
    assert ONE in served(pool, "before")
    page.keyboard.press("r")
    expect(page.get_by_text("rejected", exact=True)).to_be_visible()
    assert pool.trajectory(ONE).verdict == "reject"
    assert ONE not in served(pool, "rejected")
    page.keyboard.press("u")
    expect(page.get_by_text("no verdict")).to_be_visible()
    assert ONE in served(pool, "undone")
    assert verdicts(pool, ONE) == [*before, "reject", "clear"]


def test_undo_goes_back_level_by_level_over_several_trajectories(page: Page, pool: Pool) -> None:
    page.goto(judging(trajectory_ids=["traj-0-0", "traj-0-1"]))
    expect(page.get_by_text("2 match, newest first")).to_be_visible()
    newer, older = (page.get_by_role("link", name=name, exact=True) for name in ("traj-0-1", "traj-0-0"))
    expect(newer).to_be_visible()
    page.keyboard.press("a")
    expect(page.get_by_text("accepted", exact=True)).to_be_visible()
    page.keyboard.press("r")
    expect(page.get_by_text("rejected", exact=True)).to_be_visible()
    page.keyboard.press("j")
    expect(older).to_be_visible()
    page.keyboard.press("r")
    expect(page.get_by_text("rejected", exact=True)).to_be_visible()
    for shown, verdict in ((older, "no verdict"), (newer, "accepted"), (newer, "no verdict")):
        page.keyboard.press("u")
        expect(shown).to_be_visible()
        expect(page.get_by_text(verdict, exact=True)).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_text("Nothing was said from this tab")).to_be_visible()


def test_keys_that_are_pressed_faster_than_the_pool_answers_count_each_in_order(page: Page, pool: Pool) -> None:
    ids = [f"traj-0-{number}" for number in range(4)]
    page.goto(judging(trajectory_ids=ids))
    expect(page.get_by_text("4 match, newest first")).to_be_visible()
    for key in "rjajrja":
        page.keyboard.press(key)
    expect(page.get_by_role("link", name=ids[0], exact=True)).to_be_visible()
    expect(page.get_by_text("accepted", exact=True)).to_be_visible()
    assert [verdicts(pool, one)[-1:] for one in reversed(ids)] == [["reject"], ["accept"], ["reject"], ["accept"]]


def test_words_are_given_by_key_and_typing_them_judges_nothing(page: Page, pool: Pool) -> None:
    before = pool.trajectory(ONE)
    page.goto(judging(trajectory_ids=[ONE]))
    expect(page.get_by_text("1 match, newest first")).to_be_visible()
    page.keyboard.press("t")
    page.get_by_label("Tag", exact=True).press_sequentially("rare tact")
    page.keyboard.press("Enter")
    expect(page.get_by_text("#rare tact")).to_be_visible()
    page.keyboard.press("n")
    page.get_by_label("Note", exact=True).press_sequentially("a trace worth a note")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("cell", name="a trace worth a note")).to_be_visible()
    page.keyboard.press("w")
    reward = page.get_by_role("spinbutton", name="Reward")
    reward.press_sequentially("1e999")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Give a finite number")).to_be_visible()
    reward.fill("0.5")
    page.keyboard.press("Enter")
    expect(page.get_by_role("cell", name="reward feedback 0.5")).to_be_visible()
    page.keyboard.press("e")
    answer = page.get_by_label("Answer", exact=True)
    expect(answer).not_to_have_value("")
    answer.fill("Marn, the right answer")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("cell", name="Marn, the right answer")).to_be_visible()
    after, edit = pool.trajectory(ONE), pool.notes(ONE)[-1]
    assert after.verdict == before.verdict
    assert "rare tact" in after.tags
    assert after.reward == (before.reward or 0) + 0.5
    assert (edit.target, edit.target_id) == ("step", before.steps[-1].id)
    assert (edit.kind, edit.name, edit.text) == ("feedback", "edit", "Marn, the right answer")
    for _ in range(4):
        page.keyboard.press("u")
    expect(page.get_by_role("cell", name="tag rare tact taken away")).to_be_visible()
    assert (pool.trajectory(ONE).tags, pool.trajectory(ONE).reward) == (before.tags, before.reward)


def test_buttons_do_what_their_keys_do_and_a_cancelled_question_says_nothing(page: Page, pool: Pool) -> None:
    count = len(pool.notes(ONE))
    page.goto(judging(trajectory_ids=[ONE]))
    page.get_by_role("button", name="Note (n)").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Accept (a)").click()
    expect(page.get_by_text("accepted", exact=True)).to_be_visible()
    assert pool.trajectory(ONE).verdict == "accept"
    page.keyboard.press("u")  # the button has the focus, and is no field
    expect(page.get_by_text("no verdict")).to_be_visible()
    assert len(pool.notes(ONE)) == count + 2


def test_the_page_of_a_trajectory_judges_it_too(page: Page, pool: Pool) -> None:
    page.goto(f"/trajectory/{ONE}")
    expect(page.get_by_role("button", name="Reject (r)")).to_be_visible()
    page.keyboard.press("r")
    expect(page.get_by_text("rejected", exact=True)).to_be_visible()
    assert ONE not in served(pool, "rejected")
    page.keyboard.press("u")
    expect(page.get_by_text("no verdict")).to_be_visible()
    assert ONE in served(pool, "undone")


@pytest.mark.short
def test_two_people_judge_the_same_the_newest_holds_and_nothing_is_lost(
    page: Page, pool: Pool, browser: Browser, url: str
) -> None:
    before = verdicts(pool, ONE)
    context = browser.new_context(base_url=url)
    context.set_default_timeout(PATIENCE)
    other = context.new_page()
    for tab in (page, other):
        tab.goto(judging(trajectory_ids=[ONE]))
        expect(tab.get_by_text("1 match, newest first")).to_be_visible()
    page.keyboard.press("a")
    expect(other.get_by_text("accepted", exact=True)).to_be_visible()
    other.keyboard.press("r")
    expect(page.get_by_text("rejected", exact=True)).to_be_visible()
    page.keyboard.press("u")  # it would undo the other's word
    expect(page.get_by_text("somebody else has judged this since")).to_be_visible()
    for tab in (page, other):
        expect(tab.get_by_text("rejected", exact=True)).to_be_visible()
        expect(tab.get_by_role("cell", name="verdict accept")).to_be_visible()
        expect(tab.get_by_role("cell", name="verdict reject").last).to_be_visible()
    assert verdicts(pool, ONE) == [*before, "accept", "reject"]
    context.close()


@pytest.mark.short
def test_a_selection_is_built_saved_leased_by_name_replaced_and_deleted(page: Page, pool: Pool) -> None:
    page.goto("/curation")
    page.get_by_label("Channel").fill("grpo-search")
    agents = page.get_by_label("Agents")
    agents.fill("searcher")
    agents.press("Enter")
    page.get_by_text("What became of it").click()
    page.get_by_label("Min reward").fill("0.5")
    page.get_by_role("button", name="Trajectories", exact=True).click()
    page.get_by_role("button", name="Add a rule").click()
    page.get_by_text("Length", exact=True).click()
    page.get_by_label("Max response").fill("30")
    rules = (Length(max_response=30),)
    wanted = Selection(channel="grpo-search", agents=("searcher",), min_reward=0.5, rules=rules)
    count = len(served(pool, "by hand", selection=wanted))
    assert 0 < count < pool.count(wanted)
    expect(page.get_by_text(f"Left: {count} trajectories.")).to_be_visible()
    page.get_by_role("button", name="Save as…").click()
    name_it(page, "good ones")
    expect(page.get_by_text("Saved as good ones")).to_be_visible()
    assert pool.selection("good ones") == wanted
    assert len(served(pool, "by name", selection="good ones")) == count

    page.reload()  # the address has the name
    expect(page.get_by_label("Min reward")).to_have_value("0.5")
    page.get_by_label("Max response").fill("20")
    page.get_by_role("button", name="Save as…").click()
    name_it(page, "good ones")
    page.get_by_role("button", name="Replace it").click()
    expect(page.get_by_text("Saved as good ones")).to_be_visible()
    assert pool.selection("good ones").rules == (Length(max_response=20),)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    assert pool.selections() == ["good ones"]
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_text("Deleted good ones")).to_be_visible()
    assert pool.selections() == []


@pytest.mark.short
def test_a_dataset_is_frozen_of_what_the_page_counted_and_leased_from(page: Page, pool: Pool) -> None:
    page.goto(f"/curation?{urlencode({'selection': json.dumps({'rules': [{'use': 'zero_advantage'}]})})}")
    page.get_by_role("button", name="Apply them to all").click()
    expect(page.get_by_text("Applied to all")).to_be_visible()
    page.get_by_label("Name of the dataset").fill("train")
    page.get_by_role("button", name="Freeze").click()
    expect(page.get_by_role("link", name="train@1")).to_be_visible()
    made = pool.dataset("train")
    expect(page.get_by_text(made.digest)).to_be_visible()
    of = made.manifest
    expect(page.get_by_text(f"Left: {of.units:,} groups with {of.trajectories:,} trajectories.")).to_be_visible()
    assert len(served(pool, "trainer", dataset="train")) == of.trajectories


def test_a_mistake_is_said_beside_its_field_and_the_address_carries_the_form(page: Page) -> None:
    page.goto("/curation")
    page.get_by_text("Age and length").click()
    page.get_by_label("Min steps").fill("-1")
    expect(page.get_by_text("greater than or equal to 0")).to_be_visible()
    page.get_by_label("Min steps").fill("4")
    expect(page.get_by_text("greater than or equal to 0")).to_have_count(0)
    page.get_by_label("Sources").fill("rollout")
    page.get_by_label("Sources").press("Tab")  # what was typed counts without Enter too
    page.wait_for_url("**rollout**min_steps**")
    page.reload()
    expect(page.get_by_label("Min steps")).to_have_value("4")
    expect(page.get_by_text("rollout", exact=True)).to_be_visible()


@pytest.fixture
def looking(pool: Pool) -> AbstractContextManager[str]:
    return serve(pool, read_only="The pool is opened read-only.")


def test_keys_say_nothing_for_those_who_may_only_look(
    browser: Browser, pool: Pool, looking: AbstractContextManager[str]
) -> None:
    with looking as url:
        context = browser.new_context(base_url=url)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.goto(judging(trajectory_ids=[ONE]))
        expect(page.get_by_role("button", name="Reject (r)")).to_be_disabled()
        page.keyboard.press("r")
        expect(page.get_by_role("alert").get_by_text("The pool is opened read-only.")).to_be_visible()
        assert pool.trajectory(ONE).verdict == "clear"
        context.close()


def test_stored_text_is_shown_as_text(page: Page, pool: Pool) -> None:
    evil = "<img src=x onerror=document.title='broken'>"
    pool.put(Annotation.tag("trajectory", ONE, evil))
    pool.put(Annotation(target="trajectory", target_id=ONE, kind="note", name="note", text=evil))
    page.goto(judging(trajectory_ids=[ONE]))
    expect(page.get_by_role("cell", name=evil).last).to_be_visible()
    expect(page).not_to_have_title("broken")
