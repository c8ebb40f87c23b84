"""The pages of what was consumed and of single updates: right figures, and an answer to every state."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from nicegui import ui
from nicegui.testing import User

from stepwell.dashboard import frame
from stepwell.dashboard.pages import consumption
from stepwell.dashboard.reading.update import GroupCredit, read_update_view
from stepwell.dashboard.reading.updates import UpdateLog, curve, mean_curve
from stepwell.errors import NotFound
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.types import UpdateInfo
from tests.dashboard.runs import RUN, looking, trained_pool, update


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    made = trained_pool(tmp_path)
    yield made
    made.close()


def rows_of(user: User, label: str) -> list[dict[str, object]]:
    (table,) = (one for one in user.find(ui.table).elements if one.props.get("aria-label") == label)
    return list(table.rows)


def series_of(user: User) -> dict[str, list[list[float]]]:
    (chart,) = user.find(ui.echart).elements
    return {series["name"]: series["data"] for series in chart.options["series"] if "name" in series}


def test_a_log_reads_what_is_new_and_of_a_version_that_was_made_again_keeps_the_newest(pool: SQLitePool) -> None:
    log = UpdateLog()
    assert log.read(pool)
    assert not log.read(pool)
    assert (log.runs, [u.policy_version for u in log.of(RUN)]) == ([RUN, "other"], [1, 2])
    again = UpdateInfo(id="again", run=RUN, policy_version=2, metrics=(("reward_mean", 0.9),), created_at=300.0)
    pool.put(again, update(RUN, 3, 400.0))
    assert log.read(pool)
    assert log.of(RUN)[1] == again
    assert [u.policy_version for u in log.newest(2)] == [3, 2]
    assert log.metrics == ["reward_mean", "loss", "trained_steps", "tree_ratio", "tree_tokens"]
    assert log.of("nobody") == []


def test_a_curve_lies_over_versions_tokens_or_hours() -> None:
    updates = [update(RUN, v, 3600.0 * v, loss=1.0 / v, sampled_tokens=10.0 * v) for v in (1, 2, 4)]
    updates.append(update(RUN, 5, 3600.0 * 5, loss=float("nan")))
    assert curve(RUN, updates, "loss", "version").points == ((1, 1.0), (2, 0.5), (4, 0.25))
    assert curve(RUN, updates, "loss", "tokens").points == ((10, 1.0), (30, 0.5), (70, 0.25))
    assert curve(RUN, updates, "loss", "hours").points == ((0, 1.0), (1, 0.5), (3, 0.25))
    assert curve(RUN, updates, "other", "version").points == ()


def test_a_mean_curve_has_the_interval_of_students_t_where_two_runs_have_the_version() -> None:
    runs = {
        "a": [update("a", 1, reward_mean=1.0), update("a", 2, reward_mean=4.0)],
        "b": [update("b", 1, reward_mean=2.0), update("b", 3, reward_mean=9.0)],
        "c": [update("c", 1, reward_mean=3.0)],
    }
    mean = mean_curve(runs, "reward_mean", "version")
    assert mean.points == ((1, 2.0),)
    ((x, low, high),) = mean.band
    assert x == 1
    assert high - 2.0 == pytest.approx(4.3027 * 1.0 / 3**0.5)
    assert low + high == pytest.approx(4.0)


def test_an_update_is_read_with_its_groups_and_what_was_left_out(pool: SQLitePool) -> None:
    view = read_update_view(pool, RUN, 1)
    (only,) = view.groups
    assert only == GroupCredit(
        group_id="g", trajectories=2, steps=2, tokens=4, lowest=-1.5, highest=1.5, weight=1.0, left_out=1
    )
    assert (view.before, view.after) == (None, 2)
    assert view.left_out == (("algorithm", 1),)
    assert read_update_view(pool, RUN, 2).credits is None
    for run, version in ((RUN, 3), ("nobody", 1)):
        with pytest.raises(NotFound):
            read_update_view(pool, run, version)


def test_data_that_the_run_was_never_given_is_told_with_the_reason(pool: SQLitePool) -> None:
    pool.put(update(RUN, 9))
    pool.lease(LeaseSpec(consumer=RUN, max_staleness=1))
    assert read_update_view(pool, RUN, 1).dropped == (("stale", 2, 0),)


async def test_the_page_shows_consumers_leases_and_updates(pool: SQLitePool) -> None:
    async with looking(pool) as user:
        await user.open("/consumption")
        (holder,) = rows_of(user, "Consumers")
        assert (holder["consumer"], holder["held"], holder["acknowledged"]) == ("holder", 2, 0)
        (lease,) = rows_of(user, "Leases held now")
        assert (lease["consumer"], lease["units"], lease["steps"]) == ("holder", 2, 6)
        assert "(in " in str(lease["expires"])
        updates = rows_of(user, "Updates")
        assert [(row["run"], row["version"]) for row in updates] == [(RUN, 2), (RUN, 1), ("other", 1)]
        assert updates[1]["version_href"] == f"/update/{RUN}/1"
        assert series_of(user) == {RUN: [[1, 0.5], [2, 0.75]], "other": [[1, 0.25]]}


async def test_the_page_follows_the_pool(pool: SQLitePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "REFRESH", 0.05)
    monkeypatch.setattr(consumption, "REFRESH", 0.05)
    async with looking(pool) as user:
        await user.open("/consumption")
        assert "third" not in series_of(user)
        pool.put(update("third", 1, 900.0, reward_mean=1.0))
        pool.release_all("holder")
        for _ in range(100):
            await asyncio.sleep(0.05)
            if "third" in series_of(user):
                break
        assert "third" in series_of(user)
        await user.should_not_see("Leases held now", retries=100)


async def test_runs_and_metric_of_a_deep_link_are_drawn_and_wrong_ones_left_out(pool: SQLitePool) -> None:
    async with looking(pool) as user:
        await user.open(f"/consumption?runs={RUN}%2Fnobody&metric=loss")
        assert series_of(user) == {RUN: [[1, 2.0], [2, 1.0]]}
        await user.open("/consumption?runs=nobody&metric=nothing&x=width&seeds=7")
        assert set(series_of(user)) == {RUN, "other"}


async def test_an_empty_pool_says_what_to_do(tmp_path: Path) -> None:
    empty = SQLitePool.open(tmp_path / "empty.sqlite")
    async with looking(empty) as user:
        await user.open("/consumption")
        await user.should_see("Nobody has consumed anything yet")
        await user.should_not_see("Leases held now")
    empty.close()


async def test_a_pool_that_cannot_be_read_is_said_so(pool: SQLitePool) -> None:
    async with looking(pool) as user:
        pool.close()
        for page in ("/consumption", "/experiments", f"/update/{RUN}/1", "/optimisation"):
            await user.open(page)
            await user.should_see("The pool cannot be read")


async def test_the_page_of_an_update_shows_what_it_was_trained_on(pool: SQLitePool) -> None:
    async with looking(pool) as user:
        await user.open(f"/update/{RUN}/1")
        (row,) = rows_of(user, "Groups of this update")
        assert (row["group"], row["weight"], row["group_href"]) == ("g", 1.0, f"/update/{RUN}/1?group=g")
        await user.should_see("1 steps of its groups: the algorithm wanted it not")
        assert {"name": "loss", "value": 2.0} in rows_of(user, "Metrics")
        await user.should_not_see("The steps of g")
        await user.open(f"/update/{RUN}/1?group=g")
        await user.should_see("The steps of g")
        steps = rows_of(user, "Steps of the group")
        assert steps[2]["trajectory_href"] == "/trajectory/g-b?step=1"
        assert [(row["trajectory"], row["index"], row["advantage"], row["weight"]) for row in steps] == [
            ("g-a", 0, 1.5, 0.5),
            ("g-b", 0, -1.5, 0.5),
            ("g-b", 1, None, None),
        ]


@pytest.mark.parametrize("path", [f"/update/{RUN}/3", "/update/nobody/1", f"/update/{RUN}/one", f"/update/{RUN}/²"])
async def test_an_update_that_is_not_there_is_said_so(pool: SQLitePool, path: str) -> None:
    async with looking(pool) as user:
        await user.open(path)
        await user.should_see("There is nothing here")


async def test_an_update_of_which_nothing_was_kept_says_so(pool: SQLitePool) -> None:
    async with looking(pool) as user:
        await user.open(f"/update/{RUN}/2")
        await user.should_see("Nobody kept what this update was trained on")


async def test_what_an_update_measured_is_shown_also_if_it_is_not_finite_and_curves_leave_it_out(
    pool: SQLitePool,
) -> None:
    pool.put(update(RUN, 3, 900.0, reward_mean=float("nan"), loss=float("-inf")))
    async with looking(pool) as user:
        await user.open("/consumption")
        assert rows_of(user, "Updates")[0]["reward"] == "NaN"  # as JavaScript writes it, for JSON has no word
        assert series_of(user)[RUN] == [[1, 0.5], [2, 0.75]]
        await user.open(f"/update/{RUN}/3")
        assert {"name": "loss", "value": "-Infinity"} in rows_of(user, "Metrics")
        await user.should_see("NaN")
