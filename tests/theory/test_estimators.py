"""How good siblings' advantages are as estimates (RTPO, theorem 2), and what weights cost that siblings do not need."""

from itertools import product

import numpy as np
import pytest

from stepwell.algorithms.base import Inputs
from stepwell.algorithms.grpo import group_advantages
from stepwell.algorithms.rtpo import RTPO, continuation_weight, sibling_advantages
from tests.theory.toy import chain, evaluate, sibling_group, softmax

FREE = (0.0, float("inf"))
"""Bounds that bind nothing."""


@pytest.mark.parametrize("g", [2, 3, 4, 5])
def test_identity_17_simulated_siblings_have_the_factor_g_minus_2_over_g_minus_1_and_leave_one_out_removes_it(
    g: int,
) -> None:
    process, random = chain([[[0, 1], [0, 1]], [[0, 0], [1, 1]]], [0.1, 0.9]), np.random.default_rng(g)
    policy = np.full(process.shape, 0.5)
    v, q = evaluate(process, policy)
    wanted = q[0, 0] - v[0, 0]
    np.testing.assert_allclose(wanted, [-0.4, 0.4])
    for baseline in ("mean", "leave_one_out"):
        algorithm = RTPO(baseline=baseline).build()
        found: list[list[float]] = [[], []]
        for _ in range(700):
            group = sibling_group(process, policy, 0, 0, g - 1, random)
            actions = {t.steps[0].id: int(t.steps[0].response_ids[0]) for t in group.trajectories}
            for credit in algorithm.assign(group, Inputs()):
                if credit.step_id in actions:
                    found[actions[credit.step_id]].append(float(credit.advantages[0]))
        factor = (g - 2) / (g - 1) if baseline == "mean" else float(g > 2)
        for action in range(2):
            error = 4 * np.std(found[action]) / np.sqrt(len(found[action])) + 1e-12
            assert abs(np.mean(found[action]) - factor * wanted[action]) < error


Outcomes = dict[tuple[int, int], float]
"""Chance of success of each (state, action) at a boundary; states and actions are equally likely."""
APART: Outcomes = {(0, 0): 0.05, (0, 1): 0.15, (1, 0): 0.85, (1, 1): 0.95}
ALIKE: Outcomes = {(0, 0): 0.45, (0, 1): 0.55, (1, 0): 0.45, (1, 1): 0.55}


def squared_error(outcomes: Outcomes, arms: list[tuple[int, ...]], estimate) -> float:
    """Of an estimate of the first one's advantage, exactly: over the states `arms`, all actions, and all outcomes.

    `arms` are the equally likely states that the compared ones are in: the same for siblings.
    """
    total = 0.0
    for states in arms:
        n = len(states)
        for actions in product(range(2), repeat=n):
            chances = [outcomes[s, a] for s, a in zip(states, actions, strict=True)]
            truth = chances[0] - (outcomes[states[0], 0] + outcomes[states[0], 1]) / 2
            for rewards in product((0.0, 1.0), repeat=n):
                likely = np.prod([p if r else 1 - p for p, r in zip(chances, rewards, strict=True)])
                total += likely * (estimate(rewards)[0] - truth) ** 2 / 2**n / len(arms)
    return total


def trajectories_error(outcomes: Outcomes, g: int) -> float:
    """Of whole trajectories, each of which came to a state of its own."""
    arms = list(product(range(2), repeat=g))
    return squared_error(outcomes, arms, lambda rewards: group_advantages(rewards, scale="none"))


def siblings_error(outcomes: Outcomes, g: int, baseline: str) -> float:
    """Of the paper's G - 1 siblings of one state."""
    arms = [(state,) * (g - 1) for state in range(2)]
    return squared_error(outcomes, arms, lambda rewards: sibling_advantages(rewards, baseline))


@pytest.mark.parametrize(("baseline", "g"), [("mean", 3), ("mean", 4), ("leave_one_out", 4), ("leave_one_out", 5)])
def test_where_states_differ_in_value_siblings_estimate_advantages_better_than_whole_trajectories(baseline, g) -> None:
    assert siblings_error(APART, g, baseline) < trajectories_error(APART, g)


def test_where_they_do_not_fewer_siblings_compared_with_each_other_estimate_worse() -> None:
    for g in (3, 4, 5):
        assert siblings_error(ALIKE, g, "leave_one_out") > trajectories_error(ALIKE, g)


def test_only_two_siblings_compared_with_each_other_estimate_worse_even_where_states_differ() -> None:
    assert siblings_error(APART, 3, "leave_one_out") > trajectories_error(APART, 3)


def tables(turns: int) -> tuple[np.ndarray, np.ndarray]:
    """An older and a newer policy for each turn, [turns, 3] each."""
    random = np.random.default_rng(2)
    old, new = (softmax(0.5 * random.normal(size=(6, 3))) for _ in range(2))
    return old[:turns], new[:turns]


def sequences(turns: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of every sequence of actions under both, [3^turns, turns] each."""
    old, new = tables(turns)
    chosen = np.array(list(product(range(3), repeat=turns)))
    return np.log(old[np.arange(turns), chosen]), np.log(new[np.arange(turns), chosen])


def test_the_variance_of_a_product_of_ratios_grows_with_the_horizon() -> None:
    variances = []
    for turns in range(1, 7):
        old, new = sequences(turns)
        weights = np.array([continuation_weight(n, o, FREE) for n, o in zip(new, old, strict=True)])
        chances = np.exp(old.sum(1))
        assert chances @ weights == pytest.approx(1.0)
        variances.append(chances @ (weights - 1) ** 2)
        before, after = tables(turns)
        assert variances[-1] == pytest.approx(np.prod((after**2 / before).sum(1)) - 1)
    assert (np.diff(variances) > 0).all()
    assert variances[-1] > 4 * variances[0]


def test_identity_18_continuations_that_the_policy_itself_regenerated_weigh_1_at_every_horizon() -> None:
    for turns in range(1, 7):
        _, new = sequences(turns)
        assert {continuation_weight(row, row, (0.1, 10.0)) for row in new} == {1.0}


def test_weights_without_bounds_are_unbiased_and_bounds_pay_for_their_variance_with_a_bias() -> None:
    old, new = sequences(5)
    rewards = np.random.default_rng(4).random(len(old))
    wanted = np.exp(new.sum(1)) @ rewards
    estimates = {}
    for bounds in (FREE, (0.5, 1.5)):
        weights = np.array([continuation_weight(n, o, bounds) for n, o in zip(new, old, strict=True)])
        estimates[bounds] = np.exp(old.sum(1)) @ (weights * rewards)
    assert estimates[FREE] == pytest.approx(wanted)
    assert abs(estimates[0.5, 1.5] - wanted) > 0.02
