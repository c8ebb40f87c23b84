"""Means, pass@k and paired differences: what they are by definition, and what their intervals promise."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import InvalidRequest
from stepwell.evaluation.measures import estimate, paired_difference, pass_at_k

rewards = st.lists(st.floats(-1, 1), min_size=1, max_size=30)


@given(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.integers(1, n)))
)
def test_pass_at_k_is_the_share_of_subsets_of_k_samples_in_which_one_succeeds(drawn) -> None:
    outcomes, k = drawn
    subsets = list(combinations(outcomes, k))
    expected = sum(map(any, subsets)) / len(subsets)
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("samples", "successes", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_pass_at_k_that_is_not_defined_is_refused(samples: int, successes: int, k: int) -> None:
    with pytest.raises(InvalidRequest, match="not defined"):
        pass_at_k(samples, successes, k)


@given(rewards)
def test_the_mean_lies_in_its_interval_and_that_within_the_values(values: list[float]) -> None:
    told = estimate(values)
    assert told.value == pytest.approx(np.mean(values))
    assert min(values) - 1e-12 <= told.low <= told.value + 1e-12
    assert told.value - 1e-12 <= told.high <= max(values) + 1e-12
    assert told.tasks == len(values)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        told = estimate(list((random.random(60) < 0.7).astype(float)))
        covered += told.low <= 0.7 <= told.high
    assert covered >= 0.9 * 200


def test_more_tasks_make_it_narrower() -> None:
    few, many = estimate([0.0, 1.0] * 10), estimate([0.0, 1.0] * 1000)
    assert many.high - many.low < (few.high - few.low) / 5


def test_nothing_has_no_mean() -> None:
    with pytest.raises(InvalidRequest, match="no task was played"):
        estimate([])


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_a_difference_knows_only_what_changed_within_tasks(pairs: list[tuple[float, float]]) -> None:
    before, after = [list(side) for side in zip(*pairs, strict=True)]
    shifted = [value + 0.25 for value in after]
    here, there = paired_difference(before, after), paired_difference(before, shifted)
    assert there.low - here.low == pytest.approx(0.25)
    assert there.high - here.high == pytest.approx(0.25)
