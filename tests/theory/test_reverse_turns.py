"""Training turn by turn, the last first (RTPO, theorem 1): on tables, with our advantages."""

import numpy as np
import pytest

from stepwell.algorithms.base import Inputs
from stepwell.algorithms.rtpo import RTPO, sibling_advantages
from tests.theory.toy import (
    Process,
    chain,
    evaluate,
    expected_gradient,
    mean_gradient,
    optimum,
    random_process,
    set_advantages,
    sibling_group,
    sibling_sets,
    softmax,
    train_turn,
)

CLOSE = 0.01
"""Of rewards in 0..1."""


def trained(process: Process, order: list[int]) -> float:
    """Value of the first state after one pass over the turns in that order, from a uniform policy."""
    logits = np.zeros(process.shape)
    for turn in order:
        train_turn(process, logits, turn)
    return float(evaluate(process, softmax(logits))[0][0, 0])


@pytest.mark.parametrize("seed", range(20))
def test_identity_19_one_pass_from_the_last_turn_reaches_the_optimum_of_backward_induction(seed: int) -> None:
    process = random_process(seed)
    best, uniform = optimum(process)[0, 0], evaluate(process, softmax(np.zeros(process.shape)))[0][0, 0]
    reached = trained(process, [2, 1, 0])
    assert best - CLOSE < reached <= best + 1e-12
    assert trained(process, [0, 1, 2]) <= reached + CLOSE
    assert uniform < reached


# The first action leads to a sure 0.5, or to where one of three actions earns 1 and the others nothing.
TRAP = chain([[[1, 2, 2]] * 5, [[0, 0, 0], [0, 0, 0], [3, 4, 4], [0, 0, 0], [0, 0, 0]]], [0.5, 0, 0, 1, 0])


def test_identity_19_one_pass_from_the_first_turn_need_not() -> None:
    assert optimum(TRAP)[0, 0] == 1
    assert trained(TRAP, [1, 0]) > 1 - CLOSE
    # a uniform second turn makes the gamble worth 1/3, so the first turn learns the sure thing for good
    assert trained(TRAP, [0, 1]) == pytest.approx(0.5, abs=CLOSE)


def test_identity_19_nor_need_turns_that_share_their_parameters() -> None:
    # one state, two actions: only the first followed by the second reaches the goal
    process = chain([[[0, 1], [1, 1], [1, 1]], [[1, 2], [1, 1], [1, 1]]], [0, 0, 1])
    assert trained(process, [1, 0]) > 1 - CLOSE
    shared = np.zeros((3, 2))
    sets = sibling_sets(2, 3)
    values = []
    for turn in [1, 0] * 20:
        _, q = evaluate(process, np.stack([softmax(shared)] * 2))
        advantages = set_advantages(q[turn], sets)
        for _ in range(200):
            shared[0] += mean_gradient(softmax(shared), sets, advantages)[0]
        values.append(evaluate(process, np.stack([softmax(shared)] * 2))[0][0, 0])
    assert optimum(process)[0, 0] == 1
    assert max(values) <= 0.25 + 1e-12  # π(first)·π(second) of one distribution


@pytest.mark.parametrize(("baseline", "factor"), [("mean", 2 / 3), ("leave_one_out", 1.0)])
def test_identity_17_siblings_give_the_policy_gradient_times_their_factor(baseline: str, factor: float) -> None:
    process = random_process(3)
    random = np.random.default_rng(0)
    policy = softmax(random.normal(size=process.shape))
    v, q = evaluate(process, policy)
    exact = policy[1] * (q[1] - v[1][:, None])
    np.testing.assert_allclose(expected_gradient(policy[1], q[1], 3, baseline), factor * exact, atol=1e-12)


def test_identity_16_with_g_2_the_gradient_is_0_whatever_the_state() -> None:
    process = random_process(3)
    policy = softmax(np.zeros(process.shape))
    assert not expected_gradient(policy[1], evaluate(process, policy)[1][1], siblings=1).any()


def test_sampled_siblings_through_the_whole_algorithm_learn_the_optimum_too() -> None:
    algorithm, random = RTPO(baseline="leave_one_out").build(), np.random.default_rng(5)
    process = chain([[[1, 2], [0, 0], [0, 0]], [[0, 0], [0, 1], [1, 2]]], [0.1, 0.4, 0.9])
    logits = np.zeros(process.shape)
    for turn in (1, 0):
        for state in range(3) if turn else (0,):
            for _ in range(120):
                policy = softmax(logits)
                group = sibling_group(process, policy, state, turn, 6, random)
                steps = {step.id: step for t in group.trajectories for step in t.steps}
                for credit in algorithm.assign(group, Inputs()):
                    step = steps[credit.step_id]
                    assert credit.trained == (step.index == turn)
                    action = int(step.response_ids[0])
                    step_up = np.eye(2)[action] - policy[turn, state]
                    logits[turn, state] += 1.5 * credit.advantages[0] * step_up / 6
    assert optimum(process)[0, 0] == 0.9
    assert evaluate(process, softmax(logits))[0][0, 0] > 0.85


def test_a_return_s_expectation_may_stand_for_it_since_advantages_are_linear_in_returns() -> None:
    random = np.random.default_rng(1)
    one, other = random.random(4), random.random(4)
    for baseline in ("mean", "leave_one_out"):
        together = sibling_advantages(0.3 * one + 0.7 * other, baseline)
        apart = 0.3 * sibling_advantages(one, baseline) + 0.7 * sibling_advantages(other, baseline)
        np.testing.assert_allclose(together, apart, atol=1e-12)
