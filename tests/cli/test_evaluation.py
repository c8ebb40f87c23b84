"""The comparison before and after: paired, with an interval that says when nothing is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import InvalidRequest
from stepwell.evaluation.measures import paired_difference

rewards = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20)


@given(rewards)
def test_swapping_the_sides_mirrors_the_interval(pairs: list[tuple[float, float]]) -> None:
    before, after = zip(*pairs, strict=True)
    there, back = (paired_difference(*sides, resamples=200) for sides in ((before, after), (after, before)))
    assert there.low <= there.high
    assert (back.low, back.high) == (pytest.approx(-there.high), pytest.approx(-there.low))


def test_a_gain_on_every_task_is_an_improvement_and_no_change_is_none() -> None:
    better = paired_difference([0.0] * 10, [1.0] * 10)
    assert (better.before, better.after, better.low, better.high, better.tasks) == (0.0, 1.0, 1.0, 1.0, 10)
    assert better.improved
    assert not paired_difference([0.5] * 10, [0.5] * 10).improved


def test_a_gain_on_one_task_of_many_is_not_shown() -> None:
    assert not paired_difference([0.0] * 20, [1.0] + [0.0] * 19).improved


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0, 0.0])])
def test_other_tasks_cannot_be_compared(before: list[float], after: list[float]) -> None:
    with pytest.raises(InvalidRequest, match="same tasks twice"):
        paired_difference(before, after)
