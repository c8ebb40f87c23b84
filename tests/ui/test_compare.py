"""Two trajectories side by side in a real browser."""

import re

import pytest
from playwright.sync_api import Page, expect

from stepwell.pool.store import SQLitePool
from stepwell.types import Step, TrajectoryInfo


@pytest.fixture
def two(pool: SQLitePool) -> None:
    """`one` and `other` take the same first step, and part at the second token of their next."""
    for owner, token in (("one", 8), ("other", 9)):
        pool.put(TrajectoryInfo(id=owner))
        for index, tokens in enumerate(([5, 6], [7, token, 7])):
            pool.put(
                Step(
                    trajectory_id=owner,
                    index=index,
                    prompt_ids=[1, 2],
                    response_ids=tokens,
                    logprobs=[-1.0] * len(tokens),
                    model="tiny",
                    policy_version_min=index,
                    policy_version_max=index,
                )
            )


@pytest.mark.usefixtures("two")
@pytest.mark.short
def test_ids_that_are_typed_are_compared_from_the_first_difference_on(page: Page) -> None:
    page.goto("/compare")
    page.get_by_label("Left trajectory").fill("one")
    page.get_by_label("Right trajectory").fill("other")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page).to_have_url(re.compile(r"left=one&right=other"))
    expect(page.get_by_text("The first step is the same, token for token; they differ from step 1 on.")).to_be_visible()
    expect(page.get_by_text("first difference: token 1 of the response")).to_be_visible()
    expect(page.locator(".sw-differs")).to_have_text(["w8 w7", "w9 w7"])
    page.get_by_role("button", name="Swap").click()
    expect(page.locator(".sw-differs")).to_have_text(["w9 w7", "w8 w7"])


@pytest.mark.usefixtures("two")
def test_an_address_can_name_the_step_from_which_on_they_are_shown(page: Page) -> None:
    page.goto("/compare?left=one&right=other&step=0")
    expect(page.get_by_text("the same tokens")).to_be_visible()
    expect(page.get_by_role("heading", name="Step 1")).to_be_visible()


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(("width", "beside"), [(1280, True), (360, False)])
def test_columns_stack_on_a_phone(page: Page, width: int, beside: bool) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto("/compare?left=one&right=other")
    boxes = [page.locator(".sw-differs").nth(number).bounding_box() for number in (0, 1)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert (boxes[0]["x"] < boxes[1]["x"]) is beside
    assert (boxes[0]["y"] < boxes[1]["y"]) is not beside
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.usefixtures("two")
def test_what_is_not_there_is_said_so(page: Page) -> None:
    page.goto("/compare?left=one&right=nowhere")
    expect(page.get_by_text("They cannot be compared: no trajectory 'nowhere'.")).to_be_visible()
