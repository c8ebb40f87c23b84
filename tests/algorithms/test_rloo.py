"""Leave-one-out baselines."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.rloo import RLOO, leave_one_out
from stepwell.errors import InvalidRecord
from tests.algorithms.builders import assign, make_group, make_trajectory

returns = st.lists(st.floats(-100, 100), min_size=2, max_size=10)


@given(returns)
def test_each_return_is_compared_with_the_mean_of_the_others(group) -> None:
    naive = [r - np.mean(group[:i] + group[i + 1 :]) for i, r in enumerate(group)]
    np.testing.assert_allclose(leave_one_out(group), naive, atol=1e-10)


@given(returns, st.floats(-100, 100))
def test_the_baseline_of_a_trajectory_does_not_depend_on_its_own_return(group, other) -> None:
    changed = [other, *group[1:]]
    baseline = group[0] - leave_one_out(group)[0]
    assert other - leave_one_out(changed)[0] == pytest.approx(baseline, abs=1e-10)


@pytest.mark.parametrize(("group", "advantages"), [([], []), ([5.0], [0.0]), ([0.1] * 3, [0.0] * 3), ([3, 1], [2, -2])])
def test_alone_or_among_equals_nobody_stands_out(group, advantages) -> None:
    assert leave_one_out(group).tolist() == advantages


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_return_that_is_not_finite_is_refused(bad) -> None:
    with pytest.raises(InvalidRecord, match="NaN or infinite"):
        leave_one_out([0.0, bad])


def test_every_step_of_a_trajectory_gets_its_advantage() -> None:
    trajectories = (make_trajectory(name, [1, 2], [0.0, r]) for name, r in (("a", 1.0), ("b", 0.0), ("c", 0.5)))
    credit = assign(RLOO().build(), make_group(*trajectories))
    assert {step_id: c.advantages.tolist() for step_id, c in credit.items()} == {
        "a-0": [0.75],
        "a-1": [0.75] * 2,
        "b-0": [-0.75],
        "b-1": [-0.75] * 2,
        "c-0": [0.0],
        "c-1": [0.0] * 2,
    }
