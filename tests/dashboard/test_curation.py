"""Curation: what a selection comes to is what the feed does with it, and forms hold what they are given."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC
from pathlib import Path

import pytest
from nicegui import ui
from nicegui.testing import User, user_simulation

from stepwell.curation.rules import Duplicates, Length, Score, ZeroAdvantage
from stepwell.curation.selection import Selection
from stepwell.dashboard import frame
from stepwell.dashboard.mounting import register
from stepwell.dashboard.pages.curation.builder import RULES
from stepwell.dashboard.reading.curation import (
    EXAMPLES,
    Sifting,
    described,
    next_of,
    place_of,
    read_reach,
    read_selection,
    sift,
    to_judge,
    written,
)
from stepwell.dashboard.rule_forms import Form, kind_of
from stepwell.dashboard.visit import Desk, Visitor
from stepwell.errors import InvalidRequest
from stepwell.pool.lease import LeaseSpec, ReadyCount
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Record, TrajectoryInfo
from tests.pool.builders import complete_trajectory, make_step

EVERYTHING = Selection(
    channel="c",
    task_ids=("t", "ü/2"),
    statuses=("terminated",),
    verdicts=("reject",),
    min_reward=0.0,
    max_policy_version=7,
    created_after=1_700_000_040.0,
    text="a b",
    rules=(Length(max_response=3), Score(part="judge", missing=True), ZeroAdvantage(tolerance=0.5)),
)


def group(name: str, *rewards: float, **fields) -> list[Record]:
    own = [complete_trajectory(f"{name}-{number}", name, reward=reward) for number, reward in enumerate(rewards)]
    info = GroupInfo(id=name, task_id="task", **{"size": len(rewards), **fields})
    return [info, *(record for taken in own for record in taken)]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    pool.put(*group("flat", 1.0, 1.0), *group("good", 0.0, 1.0), *group("lenient", 0.0, 1.0, min_size=1))
    pool.put(TrajectoryInfo(id="open"), make_step("open"))
    yield pool
    pool.close()


def last(pool: SQLitePool, selection: Selection, unit: str = "group", most: int | None = None) -> Sifting:
    *_, result = sift(pool, selection, unit, most)
    return result


@pytest.mark.parametrize(
    "rules",
    [(), (ZeroAdvantage(),), (Duplicates(),), (Duplicates(), ZeroAdvantage()), (Score(part="reward", min=0.5),)],
)
@pytest.mark.parametrize("unit", ["group", "trajectory"])
def test_what_is_left_is_what_a_new_consumer_gets(pool: SQLitePool, rules: tuple, unit: str) -> None:
    selection = Selection(rules=rules)
    result = last(pool, selection, unit)
    served = pool.lease(LeaseSpec(consumer="trainer", unit=unit, selection=selection, limit=99)).groups
    assert result.left == ReadyCount(len(served), sum(len(one.trajectories) for one in served))
    assert result.seen == read_reach(pool, selection, unit).ready
    dropped = sum(one.trajectories for one in result.by_rule)
    assert result.seen.trajectories == result.left.trajectories + dropped + result.with_their_units


def test_each_rule_says_what_it_leaves_out_and_why_with_examples(pool: SQLitePool) -> None:
    result = last(pool, Selection(rules=(ZeroAdvantage(), Duplicates())))
    flat, same = result.by_rule
    assert (flat.trajectories, flat.reasons) == (2, (("zero advantage", 2),))
    assert sorted(flat.examples) == [("flat-0", "zero advantage"), ("flat-1", "zero advantage")]
    assert (same.trajectories, sorted(name for name, _ in same.examples)) == (2, ["good-1", "lenient-1"])
    assert result.with_their_units == 1  # good-0, of a group that needs both


def test_a_sample_is_what_it_says_and_examples_are_few(pool: SQLitePool) -> None:
    pool.put(*(record for number in range(40) for record in group(f"g{number}", 1.0, 1.0)))
    sample = last(pool, Selection(rules=(ZeroAdvantage(),)), most=10)
    assert sample.seen.trajectories == 10
    assert len(sample.by_rule[0].examples) == EXAMPLES
    steps = list(sift(pool, Selection(rules=(ZeroAdvantage(),)), "group"))
    assert [one.seen.units for one in steps] == [8, 16, 24, 32, 40, 43]


def test_the_queue_goes_from_the_newest_to_the_oldest_that_nobody_judged(pool: SQLitePool) -> None:
    pool.put(Annotation.verdict("trajectory", "good-1", "accept"), Annotation.verdict("trajectory", "good-0", "reject"))
    wanted, seen, before = to_judge(Selection(group_ids=("good", "flat")), judged=False), [], None
    while (found := next_of(pool, wanted, before)) is not None:
        before = found[0]
        seen.append(found[1].info.id)
    assert seen == ["flat-1", "flat-0"]
    assert next_of(pool, wanted, place_of(pool, "good-0"))[1].info.id == "flat-1"
    assert place_of(pool, "nowhere") is None
    for verdicts, judged, count in ((("reject",), False, 0), (("reject",), True, 1), (("accept", "clear"), True, 7)):
        assert pool.count(to_judge(Selection(verdicts=verdicts), judged=judged)) == count


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        EVERYTHING,
        *(Selection(rules=(rule(**({"part": "p"} if use == "score" else {})),)) for use, rule in RULES.items()),
    ],
)
def test_a_deep_link_carries_every_selection(selection: Selection) -> None:
    assert read_selection(written(selection), UTC) == selection
    assert bool(written(selection)) == bool(described(selection)) == (selection != Selection())


@pytest.mark.parametrize("text", ["nonsense", "[]", "null", '{"min_reward": "high"}', '{"rules": [{"use": "magic"}]}'])
def test_a_wrong_deep_link_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_selection(text, UTC)


@pytest.mark.parametrize("when", [-1e15, 1e300])
def test_a_time_that_no_calendar_has_is_left_out_of_a_deep_link(when: float) -> None:
    given = Selection(created_before=when, created_after=60.0, min_reward=0.5)
    assert read_selection(written(given), UTC) == Selection(created_after=60.0, min_reward=0.5)


def test_every_field_of_every_model_has_an_input() -> None:
    for model in (Selection, *RULES.values()):
        for name, field in model.model_fields.items():
            if name != "rules":
                assert kind_of(field.annotation).base in (bool, int, float, str), (model, name)


@pytest.fixture
async def user(pool: SQLitePool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[User]:
    monkeypatch.setattr(frame, "REFRESH", 0.05)
    async with user_simulation() as user:
        register(Desk(pool=pool))
        yield user


async def test_a_form_gives_back_what_it_was_given(user: User) -> None:
    @ui.page("/forms")
    def page() -> None:
        for model, values in (
            (Selection, EVERYTHING.model_dump()),
            (Length, {"max_response": 3}),
            (Score, {"part": "j"}),
        ):
            only = [name for name in model.model_fields if name != "rules"]
            forms.append((model, values, Form(model, values, lambda: None, UTC, only)))

    forms: list = []
    await user.open("/forms")
    assert len(forms) == 3
    for model, values, form in forms:
        given = {name: value for name, value in values.items() if name not in ("rules", "use")}
        assert model(**form.values) == model(**given)


async def test_the_page_counts_what_matches_and_what_the_rules_leave_out(user: User) -> None:
    await user.open('/curation?selection={"rules":[{"use":"zero_advantage"}]}')
    await user.should_see("Ready of these: 3 groups with 6 trajectories")
    await user.should_see("Zero advantage: 2")
    await user.should_see("Left: 2 groups with 4 trajectories.", retries=100)


async def test_the_counts_follow_the_pool(user: User, pool: SQLitePool) -> None:
    await user.open("/curation")
    await user.should_see("Ready of these: 3 groups with 6 trajectories. A new consumer is offered them")
    pool.put(*group("more", 1.0))
    await user.should_see("Ready of these: 4 groups with 7 trajectories", retries=100)


async def test_rules_are_applied_as_soon_as_something_is_ready(user: User, pool: SQLitePool) -> None:
    await user.open('/curation?selection={"min_reward":2,"rules":[{"use":"duplicates"}]}')
    await user.should_see("None of these would be handed over")
    pool.put(*group("late", 2.0))
    await user.should_see("Left: 1 group with 1 trajectory.", retries=100)


@pytest.mark.parametrize(
    "query",
    [
        "?unit=flock&tab=x&at=y&judged=z",
        "?saved=nowhere",
        "?selection=%00",
        "?tab=judge&at=%00",
        '?tab=judge&selection={"channel":"\\u0000"}',
        '?selection={"channel":"\\u0000"}',
        '?selection={"created_before":-1e15,"created_after":1e300}',
    ],
)
async def test_wrong_values_in_the_address_are_ignored(user: User, query: str) -> None:
    await user.open("/curation" + query)
    await user.should_see("Judge")


@pytest.mark.parametrize("query", ["?saved=deleted-one", "?selection={bad", '?selection={"nosuch":1}'])
async def test_a_selection_in_the_address_that_cannot_be_is_not_taken_for_everything_without_a_word(
    user: User, query: str
) -> None:
    await user.open("/curation" + query)
    await user.should_see("The address asks for what cannot be chosen")


async def test_an_empty_pool_has_nothing_to_judge_and_says_so(tmp_path: Path) -> None:
    pool = SQLitePool.open(tmp_path / "empty.sqlite")
    async with user_simulation() as user:
        register(Desk(pool=pool))
        await user.open("/curation?tab=judge")
        await user.should_see("left to judge")
    pool.close()


async def test_who_may_not_write_sees_everything_and_is_told_why_nothing_can_be_changed(pool: SQLitePool) -> None:
    async with user_simulation() as user:
        register(Desk(pool=pool, visitor=lambda _: Visitor(read_only="The pool is opened read-only.")))
        await user.open("/curation")
        await user.should_see("Ready of these: 3 groups")
        for label in ("Save as…", "Delete", "Freeze"):
            (button,) = user.find(kind=ui.button, content=label).elements
            assert not button.enabled
        await user.open("/curation?tab=judge")
        await user.should_see("7 left to judge, newest first", retries=100)
        buttons = {button.text: button.enabled for button in user.find(ui.button).elements if "(" in button.text}
        assert {text for text, enabled in buttons.items() if enabled} == {"Previous (k)", "Next (j)"}


async def test_a_saved_selection_may_have_a_time_that_no_calendar_has(user: User, pool: SQLitePool) -> None:
    pool.save_selection("far", Selection(created_before=1e300))
    await user.open("/curation?saved=far")
    await user.should_see("trajectories match the conditions")


async def test_each_verdict_leaves_one_less_to_judge_and_before_the_first_there_is_none(
    user: User, pool: SQLitePool
) -> None:
    await user.open("/curation?tab=judge")
    await user.should_see("7 left to judge, newest first", retries=100)
    user.find(kind=ui.button, content="Accept (a)").click()
    await user.should_see("6 left to judge, newest first", retries=100)
    user.find(kind=ui.button, content="Previous (k)").click()
    await user.should_see("This is where you began", retries=100)


async def test_a_word_that_was_not_shown_yet_is_told_to_who_overrules_it(
    pool: SQLitePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "REFRESH", 1000.0)
    name = pool.trajectories(limit=1)[0][1].info.id
    async with user_simulation() as user:
        register(Desk(pool=pool))
        await user.open("/curation?tab=judge")
        await user.should_see("no verdict", retries=100)
        pool.put(Annotation.verdict("trajectory", name, "accept"))
        user.find(kind=ui.button, content="Reject (r)").click()
        await user.should_see("Somebody said accept just now; yours holds.", retries=100)
        assert pool.trajectory(name).verdict == "reject"
