"""The tree of the Optimisation page: its figures are those of the packing, and whoever walks can see all of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from nicegui import ui

from stepwell.dashboard.addresses import link
from stepwell.dashboard.icicle import MOST_BARS, Bar, Place, bars, picture, place_of, shown
from stepwell.dashboard.reading.optimisation import NEWEST, Choice, Forest, Plan, by_depth, read_forest
from stepwell.dashboard.runs import RunFolder
from stepwell.errors import NotFound
from stepwell.pool.keeping import Retention
from stepwell.pool.store import SQLitePool
from stepwell.prefix_tree.pack import MICRO_BATCH_TOKENS
from stepwell.prefix_tree.savings import savings, trained_rows
from stepwell.types import GroupInfo, TrajectoryInfo
from tests.dashboard.runs import RUN, group, looking, step, trained_pool, trajectory


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    made = trained_pool(tmp_path)
    yield made
    made.close()


def wild(pool: SQLitePool, seed: int, steps: int) -> Forest:
    """The tree of one group whose trajectories go on from each other's middles."""
    random = np.random.default_rng(seed)
    pool.put(GroupInfo(id="wild", task_id="task", size=10_000))
    seen: list[list[list[int]]] = [[]]
    for number in range(steps):
        before = seen[random.integers(len(seen))]
        kept = before[: random.integers(len(before) + 1)]
        turns = [*kept, random.integers(0, 3, random.integers(1, 6)).tolist()]
        seen.append(turns)
        pool.put(*trajectory(f"w{number}", "wild", turns))
    return read_forest(pool, Choice(group="wild"), Plan())


def test_the_figures_of_a_group_are_those_of_the_trainers_packing(pool: SQLitePool) -> None:
    forest = read_forest(pool, Choice(group="g"), Plan(budget=10))
    rows = trained_rows(pool.group("g").trajectories)
    assert forest.saved == savings(rows, 10)
    assert (forest.groups, forest.trajectories, len(forest.rows)) == (1, 2, 3)
    assert [(row.step_id, row.prompt, row.response) for row in forest.rows] == [
        ("g-a-0", 4, 2),
        ("g-b-0", 4, 3),
        ("g-b-1", 7, 1),
    ]


def test_the_tree_of_an_update_has_the_rows_that_it_was_trained_on_and_no_others(pool: SQLitePool) -> None:
    forest = read_forest(pool, Choice(run=RUN, version=1), Plan())
    assert {row.step_id for row in forest.rows} == {"g-a-0", "g-b-0"}
    pool.prune(Retention(all_selected=True))
    held = read_forest(pool, Choice(run=RUN, version=1), Plan())  # the groups are held, so they stay
    assert held.forgotten == 0
    pool.release_all("holder")
    pool.prune(Retention(all_selected=True))
    assert (read_forest(pool, Choice(run=RUN, version=1), Plan()).forgotten) == 1
    with pytest.raises(NotFound):
        read_forest(pool, Choice(run=RUN, version=2), Plan())


def test_the_newest_groups_are_ready_ones_of_their_channel(pool: SQLitePool) -> None:
    pool.put(*group("far", channel="elsewhere"), GroupInfo(id="open", task_id="task", size=2, channel=RUN))
    pool.put(TrajectoryInfo(id="open-0", group_id="open"))
    of_run = read_forest(pool, Choice(channel=RUN, newest=1), Plan())
    assert {row.trajectory_id for row in of_run.rows} == {"h-a", "h-b"}
    assert of_run.channel == RUN
    assert read_forest(pool, Choice(newest=16), Plan()).groups == 3


@pytest.mark.parametrize(
    ("query", "choice"),
    [
        ({}, Choice()),
        ({"group": "g"}, Choice(group="g")),
        ({"channel": "c", "newest": "64"}, Choice(channel="c", newest=64)),
        ({"run": "r", "version": "3"}, Choice(run="r", version=3)),
        ({"run": "r", "version": "three", "newest": "-4"}, Choice()),
        ({"newest": "9" * 40, "version": "²"}, Choice()),
    ],
)
def test_a_deep_link_says_what_is_chosen_and_what_is_wrong_in_it_counts_for_nothing(query, choice: Choice) -> None:
    assert Choice.of(query) == choice
    assert Choice.of({name: str(value) for name, value in choice.query.items()}) == choice


@pytest.mark.parametrize(
    ("recipe", "plan"),
    [
        ({"learner": {"micro_batch_tokens": 64, "tree": "off"}}, Plan(64, "off")),
        ({}, Plan(MICRO_BATCH_TOKENS, "auto")),
        ({"learner": {"micro_batch_tokens": "many", "tree": 3}}, Plan(MICRO_BATCH_TOKENS, "auto")),
        ({"learner": 7}, Plan(MICRO_BATCH_TOKENS, "auto")),
    ],
)
def test_rows_are_packed_as_the_runs_recipe_says(recipe, plan: Plan) -> None:
    assert Plan.of(recipe) == plan


def overlap(one: Bar, other: Bar) -> bool:
    eps = 1e-9
    across = one.left + eps < other.left + other.width and other.left + eps < one.left + one.width
    return across and one.top + eps < other.top + other.height and other.top + eps < one.top + one.height


@pytest.mark.parametrize(("seed", "steps"), [(1, 3), (2, 40), (3, 150)])
def test_bars_lie_in_the_picture_and_never_on_each_other_and_show_each_segment_once(
    pool: SQLitePool, seed: int, steps: int
) -> None:
    forest = wild(pool, seed, steps)
    drawn = bars(forest, shown(forest, None))
    assert len(drawn) <= 2 * MOST_BARS
    for bar in drawn:
        assert min(bar.left, bar.top) >= 0
        assert max(bar.left + bar.width, bar.top + bar.height) <= 1 + 1e-9
    assert not any(overlap(one, other) for number, one in enumerate(drawn) for other in drawn[:number])
    assert sum(bar.merged or 1 for bar in drawn) == len(forest.tree.segments)


@pytest.mark.parametrize("seed", [4, 5])
def test_each_bar_leads_to_itself_and_following_them_reaches_every_segment(pool: SQLitePool, seed: int) -> None:
    forest = wild(pool, seed, 120)
    seen: set[int] = set()
    waiting, been = [shown(forest, None)], set()
    while waiting:
        here = waiting.pop()
        if here in been:
            continue
        been.add(here)
        for bar in bars(forest, here):
            place = place_of(forest, bar.segments)
            assert shown(forest, place) == bar.segments
            assert Place.of({name: str(value) for name, value in place.query.items()}) == place
            waiting.append(bar.segments)
            if not bar.merged:
                seen.add(bar.segments[0])
    assert seen == set(range(len(forest.tree.segments)))


def test_however_deep_a_tree_is_its_picture_has_few_bars(pool: SQLitePool) -> None:
    """A comb: at each of many steps another row parts."""
    pool.put(GroupInfo(id="comb", task_id="task", size=1), TrajectoryInfo(id="comb", group_id="comb"))
    steps = [step("comb", number, [1, 2] * (number + 1), [9]) for number in range(3 * MOST_BARS)]
    pool.put(*steps)
    forest = read_forest(pool, Choice(group="comb"), Plan())
    assert len(forest.tree.segments) > 2 * len(steps) - 3
    drawn = bars(forest, shown(forest, None))
    assert len(drawn) <= 2 * MOST_BARS
    assert sum(bar.merged or 1 for bar in drawn) == len(forest.tree.segments)


@pytest.mark.parametrize(
    "query",
    [{}, {"step": "g-a-0"}, {"step": "g-a-0", "token": "x"}, {"step": "g-a-0", "token": "-1"}, {"token": "1"}],
)
def test_a_place_that_makes_no_sense_is_none(query) -> None:
    assert Place.of(query) is None


@pytest.mark.parametrize("place", [None, Place("nowhere", 3)])
def test_a_place_that_leads_nowhere_is_the_whole_tree(pool: SQLitePool, place) -> None:
    forest = read_forest(pool, Choice(), Plan())
    assert shown(forest, place) == forest.families[-1]


def test_a_place_stays_right_while_the_tree_grows(pool: SQLitePool) -> None:
    before = read_forest(pool, Choice(), Plan())
    (bar, *_) = [bar for bar in bars(before, shown(before, None)) if not bar.merged and bar.left > 0]
    place = place_of(before, bar.segments)
    tokens = before.tree.segments[bar.segments[0]]
    pool.put(*group("k"))
    after = read_forest(pool, Choice(), Plan())
    (found,) = shown(after, place)
    own = after.tree.segments[found]
    assert after.tree.ids[own.start : own.stop].tolist() == before.tree.ids[tokens.start : tokens.stop].tolist()


def test_what_is_stored_is_never_markup(pool: SQLitePool) -> None:
    pool.put(GroupInfo(id='<img src=x>"', task_id="t", size=1), *trajectory('"><script>', '<img src=x>"', [[1]]))
    forest = read_forest(pool, Choice(group='<img src=x>"'), Plan())
    drawn = bars(forest, shown(forest, None))
    address = lambda place: link("/optimisation", **place.query)  # noqa: E731
    html = picture(forest, drawn, {"tiny": lambda ids: "<script>" * len(ids)}, address)
    assert "<script" not in html
    (href,) = re.findall(r'href="(.*?)"', html)
    assert dict(parse_qsl(urlsplit(href.replace("&amp;", "&")).query)) == {"step": '"><script>-0', "token": "0"}


@pytest.mark.parametrize("bins", [1, 3, 100])
def test_by_depth_adds_up_to_all_tokens_and_to_those_that_are_left(pool: SQLitePool, bins: int) -> None:
    tree = wild(pool, 7, 60).tree
    depths = by_depth(tree, bins)
    ends = [*(depth.position for depth in depths[1:]), max(tree.lengths)]
    sizes = [end - depth.position for depth, end in zip(depths, ends, strict=True)]
    assert sum(size * d.rows for size, d in zip(sizes, depths, strict=True)) == pytest.approx(sum(tree.lengths))
    assert sum(size * d.distinct for size, d in zip(sizes, depths, strict=True)) == pytest.approx(len(tree.ids))


async def test_the_page_shows_the_tree_beside_what_training_measured(pool: SQLitePool) -> None:
    async with looking(pool) as user:
        await user.open(f"/optimisation?run={RUN}&version=1")
        await user.should_see("Expected speed-up", retries=50)
        for text in ("1 group, 2 trajectories.", "What training measured in", "tree_ratio", "0.750"):
            await user.should_see(text, retries=50)
        (shown_picture,) = (one for one in user.find(ui.html).elements if "sw-icicle" in one.content)
        assert shown_picture.content.count("data-bar") == 3


async def test_a_deep_link_shows_one_segment_with_its_text_and_steps(pool: SQLitePool) -> None:
    async with looking(pool) as user:
        await user.open("/optimisation?group=g&step=g-b-1&token=5")
        await user.should_see("Tokens 4 to 7, in 2 of 3 rows", retries=50)
        await user.should_see("<b>6</b><b>6</b><b>6</b><b>7</b>")
        await user.should_see("g-b, step 1")
        await user.should_not_see("g-a, step 0")


async def test_an_update_is_packed_as_its_recipe_says(pool: SQLitePool) -> None:
    folders = {RUN: RunFolder(recipe={"learner": {"tree": "off"}})}
    async with looking(pool, folders) as user:
        await user.open(f"/optimisation?channel={RUN}")
        await user.should_see("100.0%", retries=50)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("group=nowhere", "no group 'nowhere'"),
        ("run=run&version=9", "version 9"),
        ("channel=nowhere", "no ready group"),
    ],
)
async def test_what_is_not_there_is_said_so(pool: SQLitePool, query: str, says: str) -> None:
    async with looking(pool) as user:
        await user.open(f"/optimisation?{query}")
        await user.should_see(says, retries=50)


async def test_an_empty_pool_says_what_to_do(tmp_path: Path) -> None:
    empty = SQLitePool.open(tmp_path / "empty.sqlite")
    async with looking(empty) as user:
        await user.open("/optimisation?newest=all&step=x&token=y")
        await user.should_see("there is no ready group", retries=50)
    empty.close()


def test_the_choices_are_those_that_a_deep_link_may_name() -> None:
    assert Choice().newest in NEWEST
