"""What the page of a trajectory reads: the same whatever part of the steps is read, and all that is known of each."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.dashboard.reading.trajectory import gaps, pretty, read_head, read_views, step_views
from stepwell.errors import NotFound
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, Step, TrajectoryInfo
from tests.dashboard.records import small_pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = small_pool(tmp_path)
    yield pool
    pool.close()


def conversation(pool: SQLitePool, steps: int) -> None:
    """A trajectory `long` that asks for more each time; each third call is beside its work."""
    pool.put(TrajectoryInfo(id="long"))
    messages: list[dict[str, str]] = []
    for index in range(steps):
        side = "title" if index % 3 == 2 else ""
        messages = [*messages, {"role": "user", "content": f"ask {index}"}]
        pool.put(
            Step(
                id=f"long-{index}",
                trajectory_id="long",
                index=2 * index,  # indexes may have gaps
                prompt_ids=[1, index],
                response_ids=[2],
                logprobs=[-1.0],
                side=side,
                request=json.dumps({"messages": messages}),
                response=json.dumps({"role": "assistant", "content": f"say {index}"}),
                created_at=100.0 + 10 * index,
                latency=2.0,
            )
        )


def test_a_part_of_the_steps_is_seen_as_within_the_whole(pool: SQLitePool) -> None:
    conversation(pool, 10)
    head = read_head(pool, "long")
    whole = step_views(pool.trajectory("long").steps)
    for start in range(11):
        for stop in range(start, 12):
            assert read_views(pool, head, start, stop) == whole[start:stop]


def test_a_call_beside_the_work_is_a_conversation_of_its_own(pool: SQLitePool) -> None:
    conversation(pool, 4)
    views = step_views(pool.trajectory("long").steps)
    assert [len(view.seen) for view in views] == [1, 1, 3, 2]
    assert not any(view.rewritten for view in views)


def test_a_head_says_what_the_whole_trajectory_does(pool: SQLitePool) -> None:
    pool.put(Annotation.tag("step", "step-1", "odd"), Annotation.reward("trajectory", "traj-1", 2.0, "answer"))
    head, whole = read_head(pool, "traj-1"), pool.trajectory("traj-1")
    assert (head.summary.info, head.summary.status, head.why) == (whole.info, whole.status, whole.why)
    assert (head.tags, head.reward_parts) == (whole.tags, whole.reward_parts)
    of_steps = head.rewards()
    sums = tuple(math.fsum(value for _, value in of_steps.get(step.id, ())) for step in whole.steps)
    assert sums == whole.step_rewards
    assert of_steps["step-2"] == (("answer", 2.0),)


def test_a_head_is_equal_until_something_is_added(pool: SQLitePool) -> None:
    before = read_head(pool, "traj-1")
    pool.put(TrajectoryInfo(id="another"))
    assert read_head(pool, "traj-1") == before
    pool.put(Annotation.tag("trajectory", "traj-1", "new"))
    assert read_head(pool, "traj-1") != before


@pytest.mark.parametrize("name", ["nowhere", "\0", "\ud800"])
def test_an_unknown_trajectory_is_not_found(pool: SQLitePool, name: str) -> None:
    with pytest.raises(NotFound):
        read_head(pool, name)


def test_a_gap_is_the_time_from_an_answer_to_the_next_request(pool: SQLitePool) -> None:
    conversation(pool, 3)
    assert gaps(read_head(pool, "long").steps) == {"long-1": 8.0, "long-2": 8.0}


def test_places_are_found_by_index_also_where_there_is_none(pool: SQLitePool) -> None:
    conversation(pool, 5)
    head = read_head(pool, "long")
    assert [head.place_of(index) for index in (0, 1, 2, 8, 99)] == [0, 1, 1, 4, 5]


@pytest.mark.parametrize(
    ("stored", "shown"),
    [('{"a":[1]}', '{\n  "a": [\n    1\n  ]\n}'), ("no JSON", "no JSON"), ("", ""), ("[" * 20_000, "[" * 20_000)],
)
def test_json_is_shown_with_indentation_and_all_else_as_it_is(stored: str, shown: str) -> None:
    assert pretty(stored) == shown
