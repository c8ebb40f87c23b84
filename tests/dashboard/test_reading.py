"""The read models say what is in the pool."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.dashboard.reading.overview import NEWEST, Curve, read_overview
from stepwell.dashboard.reading.trajectory import Turn, read_steps
from stepwell.pool.store import SQLitePool
from stepwell.types import Step, Trajectory, TrajectoryInfo
from tests.dashboard.records import small_pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = small_pool(tmp_path)
    yield pool
    pool.close()


def _trajectory(*calls: tuple[str, str]) -> Trajectory:
    """A trajectory whose steps have these (request, response)."""
    steps = tuple(
        Step(trajectory_id="t", index=i, prompt_ids=[1], response_ids=[2], logprobs=[0], request=asked, response=said)
        for i, (asked, said) in enumerate(calls)
    )
    return Trajectory(info=TrajectoryInfo(id="t"), steps=steps, step_rewards=(0.0,) * len(steps))


def _request(*contents: object) -> str:
    return json.dumps({"messages": [{"role": "user", "content": content} for content in contents]})


def test_the_overview_counts_and_lists_newest_first(pool: SQLitePool) -> None:
    overview = read_overview(pool)
    stats = overview.stats
    assert (stats.groups, stats.trajectories, stats.steps, stats.response_tokens) == (1, 2, 2, 5)
    assert [summary.info.id for summary in overview.newest] == ["traj-2", "traj-1"]


def test_the_overview_lists_a_bounded_number(pool: SQLitePool) -> None:
    pool.put(*(TrajectoryInfo(id=f"more-{number}") for number in range(NEWEST + 5)))
    overview = read_overview(pool)
    assert len(overview.newest) == NEWEST
    assert overview.newest[0].info.id == f"more-{NEWEST + 4}"


def test_a_curve_has_the_updates_of_its_run_that_measured_a_reward(pool: SQLitePool) -> None:
    assert read_overview(pool).curves == (Curve("run", ((5, 0.5), (6, 0.75))),)


def test_a_step_shows_only_what_the_step_before_had_not_seen(pool: SQLitePool) -> None:
    first, second = read_steps(pool.trajectory("traj-1"))
    assert first.seen == (Turn("system", "Be brief."), Turn("user", "Which city?"))
    assert first.answer == Turn("assistant", "→ search({})")
    assert second.seen == (Turn("tool", "Marn."),)
    assert second.answer == Turn("assistant", "It is Marn.")
    assert (first.reward, second.reward) == (0.25, 1.0)
    assert not first.rewritten
    assert not second.rewritten


def test_a_client_that_changes_history_is_pointed_out() -> None:
    first, second = read_steps(_trajectory((_request("a", "b"), ""), (_request("a", "c", "d"), "")))
    assert not first.rewritten
    assert second.rewritten
    assert second.seen == (Turn("user", "c"), Turn("user", "d"))


def test_an_answer_that_comes_back_changed_is_shown() -> None:
    said = json.dumps({"role": "assistant", "content": "Marn"})
    asked = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "marn!"}]})
    _, second = read_steps(_trajectory((_request("a"), said), (asked, "")))
    assert second.seen == (Turn("assistant", "marn!"),)


@pytest.mark.parametrize(
    ("request_text", "turns"),
    [
        ("", ()),
        ("not JSON", (Turn("request", "not JSON"),)),
        ('{"messages": 3}', (Turn("request", '{"messages": 3}'),)),
        ('{"messages": ["x", {"content": 7}]}', (Turn("message", "x"), Turn("message", "7"))),
        (_request(None), (Turn("user", ""),)),
        (_request([{"type": "text", "text": "one"}, {"type": "image"}]), (Turn("user", 'one\n{"type": "image"}'),)),
        ("[" * 20_000, (Turn("request", "[" * 20_000),)),
        ('{"messages": [{"role": "user", "tool_calls": ["x"]}]}', (Turn("user", '"x"'),)),
    ],
)
def test_whatever_is_stored_can_be_shown(request_text: str, turns: tuple[Turn, ...]) -> None:
    (view,) = read_steps(_trajectory((request_text, "plain words")))
    assert view.seen == turns
    assert view.answer == Turn("assistant", "plain words")
