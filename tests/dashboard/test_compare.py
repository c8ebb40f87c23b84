"""Two trajectories side by side: aligned by step, and the first token that differs is really the first."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.dashboard.reading.compare import AT_ONCE, difference, first_difference, read_comparison, read_pairs
from stepwell.errors import NotFound
from stepwell.pool.store import SQLitePool
from stepwell.types import Step, TrajectoryInfo

Tokens = st.lists(st.integers(0, 2), max_size=6)


def step(owner: str, index: int, prompt: list[int], response: list[int]) -> Step:
    return Step(
        trajectory_id=owner, index=index, prompt_ids=prompt, response_ids=response, logprobs=[-1.0] * len(response)
    )


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    yield pool
    pool.close()


@given(Tokens, Tokens, Tokens, Tokens)
def test_everything_before_a_difference_is_shared_and_its_token_is_not(
    one_prompt: list[int], other_prompt: list[int], one: list[int], other: list[int]
) -> None:
    left, right = step("l", 0, [9, *one_prompt], one), step("r", 0, [9, *other_prompt], other)
    found = difference(left, right)
    if found is None:
        assert (one_prompt, one) == (other_prompt, other)
        return
    assert (found.part == "prompt") == (one_prompt != other_prompt)
    a, b = ([9, *one_prompt], [9, *other_prompt]) if found.part == "prompt" else (one, other)
    assert a[: found.position] == b[: found.position]
    assert a[found.position : found.position + 1] != b[found.position : found.position + 1]


def test_a_difference_has_the_text_on_both_sides_of_it() -> None:
    found = difference(
        step("l", 0, [1], [5, 6, 7]), step("r", 0, [1], [5, 8]), lambda ids: "".join(f"<{i}>" for i in ids)
    )
    assert found is not None
    assert (found.part, found.position) == ("response", 1)
    assert (found.shared, found.left, found.right) == ("<5>", "<6><7>", "<8>")


def test_the_first_difference_is_found_however_late_it_is(pool: SQLitePool) -> None:
    many = 2 * AT_ONCE + 3
    for owner in "lr":
        pool.put(TrajectoryInfo(id=owner))
        pool.put(*(step(owner, index, [1, index], [2]) for index in range(many)))
        pool.put(step(owner, many, [1], [ord(owner)]))
    both = read_comparison(pool, "l", "r")
    assert first_difference(pool, both) == many
    (pair,) = read_pairs(pool, both, many, {})
    assert not pair.alike
    assert pair.difference is not None
    assert pair.difference.part == "response"


def test_alike_trajectories_have_no_difference(pool: SQLitePool) -> None:
    for owner in "lr":
        pool.put(TrajectoryInfo(id=owner), step(owner, 0, [1], [2]), step(owner, 1, [1, 2], [3]))
    both = read_comparison(pool, "l", "r")
    assert first_difference(pool, both) == len(both.indexes) == 2
    assert all(pair.alike for pair in read_pairs(pool, both, 0, {}))


def test_steps_are_aligned_by_index_also_where_one_has_none(pool: SQLitePool) -> None:
    pool.put(TrajectoryInfo(id="l"), step("l", 0, [1], [2]), step("l", 3, [1], [2]))
    pool.put(TrajectoryInfo(id="r"), step("r", 3, [1], [2]), step("r", 5, [1], [2]))
    both = read_comparison(pool, "l", "r")
    pairs = read_pairs(pool, both, 0, {})
    assert [(pair.index, pair.left is not None, pair.right is not None) for pair in pairs] == [
        (0, True, False),
        (3, True, True),
        (5, False, True),
    ]
    assert pairs[1].alike
    assert first_difference(pool, both) == 0


def test_an_unknown_one_is_not_found(pool: SQLitePool) -> None:
    pool.put(TrajectoryInfo(id="l"))
    with pytest.raises(NotFound, match="nowhere"):
        read_comparison(pool, "l", "nowhere")
