"""Group-relative advantages, and GRPO on hand-made groups."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.grpo import GRPO, group_advantages
from stepwell.errors import InvalidRecord
from tests.algorithms.builders import assign, make_group, make_trajectory

scales = st.sampled_from(["std", "none"])
# on a grid, so that a spread is either 0 or far above the eps in the denominator
returns = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=2, max_size=10)


@given(returns, scales)
def test_a_groups_advantages_sum_to_0(group, scale) -> None:
    assert group_advantages(group, scale=scale).sum() == pytest.approx(0, abs=1e-9)


@given(returns, scales, st.randoms(use_true_random=False))
def test_the_order_of_a_group_only_orders_its_advantages(group, scale, random) -> None:
    order = list(range(len(group)))
    random.shuffle(order)
    straight = group_advantages(group, scale=scale)
    np.testing.assert_allclose(group_advantages([group[i] for i in order], scale=scale), straight[order], atol=1e-12)


@given(returns, scales, st.floats(-100, 100))
def test_a_reward_that_everybody_gets_changes_nothing(group, scale, shift) -> None:
    shifted = group_advantages(np.add(group, shift), scale=scale)
    np.testing.assert_allclose(shifted, group_advantages(group, scale=scale), atol=1e-6)


@given(returns, st.floats(0.5, 100))
def test_with_std_the_unit_of_the_reward_does_not_matter(group, factor) -> None:
    scaled = group_advantages(np.multiply(group, factor))
    np.testing.assert_allclose(scaled, group_advantages(group), rtol=1e-4, atol=1e-6)


@given(returns, st.floats(0.5, 100))
def test_without_std_the_advantage_scales_with_the_reward(group, factor) -> None:
    scaled = group_advantages(np.multiply(group, factor), scale="none")
    np.testing.assert_allclose(scaled, factor * group_advantages(group, scale="none"), rtol=1e-9, atol=1e-9)


@given(st.integers(1, 8), st.floats(-100, 100), scales)
def test_a_group_that_all_did_equally_well_learns_nothing(count, reward, scale) -> None:
    assert group_advantages([reward] * count, scale=scale).tolist() == [0.0] * count


@given(st.floats(-1e6, 1e6), scales)
def test_a_group_of_one_is_compared_with_nothing(reward, scale) -> None:
    assert group_advantages([reward], scale=scale).tolist() == [0.0]


def test_the_published_formula_with_bessels_correction() -> None:
    # mean 0.25, squared deviations 0.5625 + 3 * 0.0625 = 0.75, variance 0.75 / 3
    assert group_advantages([1, 0, 0, 0], eps=0.0) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert group_advantages([1, 0, 0, 0], scale="none") == pytest.approx([0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("others", [[], [1.0, 2.0]])
def test_a_return_that_is_not_finite_is_refused_even_alone(others, bad) -> None:
    with pytest.raises(InvalidRecord, match="NaN or infinite"):
        group_advantages([*others, bad])


def test_two_prompts_by_three_steps_early_steps_get_their_trajectorys_advantage_and_no_other_groups() -> None:
    algorithm = GRPO().build()
    for prompt, outcomes in (("p", (1.0, 0.0)), ("q", (5.0, 9.0))):
        win = make_trajectory(f"{prompt}-a", [1, 2, 3], [0.0, 0.0, outcomes[0]])
        loss = make_trajectory(f"{prompt}-b", [3, 2, 1], [0.0, outcomes[1], 0.0])
        credit = assign(algorithm, make_group(win, loss))
        sign = 1 if outcomes[0] > outcomes[1] else -1
        for trajectory, want in ((win, sign), (loss, -sign)):
            for step in trajectory.steps:
                # of two returns, each is half their distance from the mean, and the deviation is distance / √2
                np.testing.assert_allclose(credit[step.id].advantages, want / math.sqrt(2), rtol=1e-5)
                assert len(credit[step.id].advantages) == len(step.response_ids)
                assert len(credit[step.id].value_targets) == 0


def test_where_the_reward_fell_within_a_trajectory_is_irrelevant() -> None:
    algorithm = GRPO().build()
    early = make_group(make_trajectory("a", [1, 1], [1.0, 0.0]), make_trajectory("b", [1, 1], [0.0, 0.0]))
    late = make_group(make_trajectory("a", [1, 1], [0.0, 1.0]), make_trajectory("b", [1, 1], [0.0, 0.0]))
    assert assign(algorithm, early) == assign(algorithm, late)


def test_a_trajectory_without_steps_still_counts_in_the_comparison() -> None:
    lazy = make_trajectory("lazy", [], [], reward=0.0)
    credit = assign(GRPO(scale="none").build(), make_group(lazy, make_trajectory("busy", [2], [1.0])))
    assert list(credit) == ["busy-0"]
    assert credit["busy-0"].advantages.tolist() == [0.5, 0.5]
