"""Parts over ranks: every row once, equally many passes, none over the budget, and no longer than it has to be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.prefix_tree.pack import Part, pack
from stepwell.trainer.division import EMPTY, divide

rows = st.lists(
    st.builds(
        lambda shared, own, end: np.array([*range(1, shared + 1), *own, end], np.int32),
        st.integers(0, 12),
        st.lists(st.integers(20, 23), max_size=12),
        st.integers(30, 33),
    ),
    min_size=1,
    max_size=12,
)
merging = st.sampled_from(["auto", "on", "off"])
counts = st.integers(2, 5)


def tokens(part: Part) -> int:
    return len(part.tree.ids)


@given(rows, st.integers(1, 60), merging, counts)
def test_every_row_is_on_one_rank_and_all_make_equally_many_passes(made, budget, how, count) -> None:
    division = divide(made, budget, how, count)
    assert sorted(i for parts in division.rounds for part in parts for i in part.rows) == list(range(len(made)))
    assert {len(parts) for parts in division.rounds} == {count}


@given(rows, st.integers(1, 60), merging, counts)
def test_no_part_is_over_the_budget_but_a_row_that_is(made, budget, how, count) -> None:
    for parts in divide(made, budget, how, count).rounds:
        assert all(tokens(part) <= budget or len(part.rows) == 1 for part in parts)


@given(rows, st.integers(1, 60), merging, counts)
def test_each_part_is_the_tree_of_its_rows(made, budget, how, count) -> None:
    for part in (part for parts in divide(made, budget, how, count).rounds for part in parts):
        for place, row in enumerate(part.rows):
            np.testing.assert_array_equal(part.tree.ids[part.tree.places(place)], made[row])


@given(rows, st.integers(1, 60), merging, counts)
def test_ranks_wait_no_longer_than_one_would_work(made, budget, how, count) -> None:
    assert divide(made, budget, how, count).cost <= pack(made, budget, how).tokens


@given(rows, st.integers(1, 60), merging)
def test_alone_parts_are_as_they_were_packed(made, budget, how) -> None:
    rounds = divide(made, budget, how, 1).rounds
    expected = pack(made, budget, how).parts
    assert [tuple(part.rows for part in parts) for parts in rounds] == [(part.rows,) for part in expected]


@pytest.mark.parametrize(
    ("lengths", "count", "cost"), [([10] * 8, 2, 40), ([10] * 8, 4, 20), ([40, 10, 10, 10], 2, 40)]
)
def test_what_fits_one_pass_is_cut_so_that_no_rank_is_without_work(lengths, count, cost) -> None:
    made = [np.full(length, i + 1, np.int32) for i, length in enumerate(lengths)]
    division = divide(made, 1000, "off", count)
    assert division.cost == cost
    assert len(division.rounds) == 1
    assert EMPTY not in division.rounds[0]


def test_parts_of_like_sizes_are_computed_at_the_same_time_and_no_rank_has_all_the_largest() -> None:
    made = [np.full(length, 9, np.int32) for length in (8, 1, 7, 2, 6, 3, 5, 4)]
    division = divide(made, 8, "off", 2)
    sizes = [[tokens(part) for part in parts] for parts in division.rounds]
    assert division.cost <= 20
    loads = np.sum(sizes, axis=0)
    assert abs(loads[0] - loads[1]) <= 4


def test_a_rank_for_which_nothing_is_left_makes_an_empty_pass() -> None:
    (only,) = divide([np.array([4, 5], np.int32)], 10, "auto", 3).rounds
    assert [part.rows for part in only] == [(0,), (), ()]
    assert only[1:] == (EMPTY, EMPTY)


def test_without_rows_nobody_makes_a_pass() -> None:
    assert divide([], 10, "auto", 3).rounds == ()
