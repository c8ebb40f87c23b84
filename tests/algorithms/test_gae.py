"""Generalised advantage estimation against its definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.gae import gae
from stepwell.errors import InvalidRecord

numbers = st.floats(-100, 100)
chains = st.lists(st.tuples(numbers, numbers), max_size=12)
"""(reward, value) of each decision."""
shares = st.floats(0, 1)


def columns(chain: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [reward for reward, _ in chain], [value for _, value in chain]


def one_step_errors(chain: list[tuple[float, float]], gamma: float, last_value: float) -> list[float]:
    rewards, values = columns(chain)
    following = [*values, last_value][1:]
    return [r + gamma * after - v for r, after, v in zip(rewards, following, values, strict=True)]


@given(chains, shares, shares, numbers)
def test_it_equals_the_double_sum_that_defines_it(chain, gamma, lam, last_value) -> None:
    errors = one_step_errors(chain, gamma, last_value)
    naive = [sum((gamma * lam) ** k * error for k, error in enumerate(errors[n:])) for n in range(len(errors))]
    got = gae(*columns(chain), gamma=gamma, lam=lam, last_value=last_value)
    np.testing.assert_allclose(got, naive, rtol=1e-9, atol=1e-9)


@given(chains, shares, numbers)
def test_with_lambda_0_it_is_the_one_step_error(chain, gamma, last_value) -> None:
    got = gae(*columns(chain), gamma=gamma, lam=0.0, last_value=last_value)
    assert got.tolist() == one_step_errors(chain, gamma, last_value)


@given(chains, shares)
def test_with_lambda_1_it_is_the_discounted_return_minus_the_value(chain, gamma) -> None:
    rewards, values = columns(chain)
    returns = [sum(gamma**k * r for k, r in enumerate(rewards[n:])) for n in range(len(rewards))]
    got = gae(rewards, values, gamma=gamma, lam=1.0)
    np.testing.assert_allclose(got, np.subtract(returns, values), rtol=1e-9, atol=1e-9)


@given(st.integers(1, 20), numbers)
def test_a_terminal_reward_without_a_critic_or_discount_reaches_every_decision_whole(count, reward) -> None:
    got = gae([0.0] * (count - 1) + [reward], [0.0] * count, gamma=1.0, lam=1.0)
    assert got.tolist() == [reward] * count


@given(st.lists(numbers, min_size=1, max_size=12), shares, shares)
def test_a_perfect_critic_of_a_deterministic_chain_leaves_no_advantage(rewards, gamma, lam) -> None:
    values = [sum(gamma**k * r for k, r in enumerate(rewards[n:])) for n in range(len(rewards))]
    np.testing.assert_allclose(gae(rewards, values, gamma=gamma, lam=lam), 0, atol=1e-9)


@given(numbers, numbers, shares, shares)
def test_a_single_decision_gets_reward_minus_value(reward, value, gamma, lam) -> None:
    assert gae([reward], [value], gamma=gamma, lam=lam).tolist() == [reward - value]


@given(chains, shares, shares, shares)
def test_it_is_linear_in_rewards_and_values(chain, gamma, lam, factor) -> None:
    rewards, values = (np.array(column) for column in columns(chain))
    scaled = gae(factor * rewards, factor * values, gamma=gamma, lam=lam)
    np.testing.assert_allclose(scaled, factor * gae(rewards, values, gamma=gamma, lam=lam), rtol=1e-9, atol=1e-9)


def test_a_bootstrap_counts_as_a_reward_discounted_once_more() -> None:
    got = gae([0.0, 1.0], [0.0, 0.0], gamma=0.5, lam=1.0, last_value=8.0)
    assert got.tolist() == [0.5 * 1 + 0.25 * 8, 1 + 0.5 * 8]


def test_no_decisions_get_no_advantages() -> None:
    assert gae([], [], gamma=0.9, lam=0.9).shape == (0,)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["reward", "value", "last_value"])
def test_what_is_not_finite_is_refused_wherever_it_stands(place, bad) -> None:
    numbers = {"reward": 0.0, "value": 0.0, "last_value": 0.0} | {place: bad}
    with pytest.raises(InvalidRecord, match="NaN or infinite"):
        gae([0.0, numbers["reward"]], [numbers["value"], 0.0], gamma=1.0, lam=1.0, last_value=numbers["last_value"])


@pytest.mark.parametrize(("rewards", "values"), [([1.0], []), ([1.0], [1.0, 2.0]), ([[1.0]], [[1.0]])])
def test_a_reward_without_its_value_is_refused(rewards, values) -> None:
    with pytest.raises(InvalidRecord, match="one value per reward"):
        gae(rewards, values, gamma=1.0, lam=1.0)
