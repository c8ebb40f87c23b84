"""Identities between algorithms, by their numbers in the list that the papers were read into (docs/papers.md).

Those of what an update does with credit are in tests/trainer; those of hindsight and siblings beside their algorithms.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stepwell.algorithms.gae import gae
from stepwell.algorithms.gigpo import GiGPO, anchored_advantages
from stepwell.algorithms.grpo import GRPO, group_advantages
from stepwell.algorithms.ppo import PPO
from stepwell.algorithms.rloo import leave_one_out
from stepwell.algorithms.seeupo import SeeUPO
from stepwell.algorithms.steppo import StepPO
from stepwell.trainer.collate import make_samples, whiten
from stepwell.types import Group, Trajectory
from tests.algorithms.builders import (
    assign,
    groups,
    make_group,
    make_inputs,
    make_trajectory,
    make_values,
    repeated,
    rewards,
    with_step,
    with_step_values,
)

shares = st.floats(0, 1)
numbers = st.floats(-100, 100)
chains = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)
"""(reward, value) of each step."""
one_token_steps = st.lists(st.just(1), max_size=6)
grid = st.integers(-40, 40).map(lambda n: n / 4)
"""On a grid, so that a spread is either 0 or far above the eps in a denominator."""
lists_of_returns = st.lists(grid, min_size=2, max_size=8)


def spread(values: list[float], lengths: list[int]) -> np.ndarray:
    """Each step's value before each of its tokens."""
    return np.repeat(np.array(values, np.float64), lengths)


def at_ends(values: list[float], lengths: list[int]) -> np.ndarray:
    """Each step's reward at its last token."""
    placed = np.zeros(sum(lengths))
    placed[np.cumsum(lengths) - 1] = values
    return placed


def whitened(advantages: np.ndarray) -> np.ndarray:
    return (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)


@given(with_step_values(tokens=one_token_steps), shares, shares)
def test_identity_1_with_one_token_per_step_token_gae_is_step_gae(case, gamma, lam) -> None:
    trajectory, values = case
    tokens = assign(PPO(gamma=gamma, lam=lam).build(), make_group(trajectory), values)
    assert tokens == assign(StepPO(gamma=gamma, lam=lam).build(), make_group(trajectory), values)


@given(with_step_values(tokens=one_token_steps), shares, shares)
def test_identity_1_holds_after_whitening_since_rows_are_tokens(case, gamma, lam) -> None:
    trajectory, values = case
    group = make_group(trajectory)
    token, step = (make(gamma=gamma, lam=lam).build() for make in (PPO, StepPO))
    assert (token.whiten, step.whiten) == ("token", "step")
    both = [whiten(make_samples([group], assign(a, group, values), values), a.whiten) for a in (token, step)]
    assert both[0] == both[1]


@given(chains, st.data())
def test_identity_2_undiscounted_with_a_value_per_step_token_gae_is_step_gae_at_every_token(chain, data) -> None:
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=len(chain), max_size=len(chain)))
    earned, values = [r for r, _ in chain], [v for _, v in chain]
    steps = gae(earned, values, gamma=1.0, lam=1.0)
    tokens = gae(at_ends(earned, lengths), spread(values, lengths), gamma=1.0, lam=1.0)
    np.testing.assert_allclose(tokens, spread(list(steps), lengths), atol=1e-9)


@given(with_step_values(tokens=st.lists(st.integers(1, 4), max_size=5)))
def test_identity_2_holds_for_the_algorithms_themselves(case) -> None:
    trajectory, values = case
    tokens = assign(PPO().build(), make_group(trajectory), repeated(trajectory, values))
    steps = assign(StepPO(gamma=1.0).build(), make_group(trajectory), values)
    for step in trajectory.steps:
        np.testing.assert_allclose(tokens[step.id].advantages, steps[step.id].advantages, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(tokens[step.id].value_targets, steps[step.id].value_targets[0], atol=1e-4)


@pytest.mark.parametrize(("gamma", "lam"), [(0.5, 1.0), (1.0, 0.5)])
def test_identity_2_fails_with_a_discount_or_lambda_below_1_in_steps_of_several_tokens(gamma, lam) -> None:
    trajectory = make_trajectory("t", [3, 2], [0.0, 1.0])
    tokens = assign(PPO(gamma=gamma, lam=lam).build(), make_group(trajectory))
    steps = assign(StepPO(gamma=gamma, lam=lam).build(), make_group(trajectory))
    assert tokens["t-0"].advantages.tolist() == [0.5**4, 0.5**3, 0.5**2]
    assert tokens["t-1"].advantages.tolist() == [0.5, 1.0]
    assert steps["t-0"].advantages.tolist() == [0.5, 0.5, 0.5]
    assert steps["t-1"].advantages.tolist() == [1.0, 1.0]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), rewards)
def test_identity_3_without_a_critic_or_discount_a_terminal_reward_reaches_every_step_whole(lengths, reward) -> None:
    trajectory = make_trajectory("t", lengths, [0.0] * (len(lengths) - 1) + [reward])
    for credit in assign(StepPO(gamma=1.0).build(), make_group(trajectory)).values():
        assert set(credit.advantages.tolist()) == {reward}


@given(chains, shares)
def test_identity_3_with_lambda_0_the_advantage_is_the_one_step_error(chain, gamma) -> None:
    earned, values = [r for r, _ in chain], [v for _, v in chain]
    errors = [r + gamma * after - v for r, v, after in zip(earned, values, [*values[1:], 0.0], strict=True)]
    np.testing.assert_allclose(gae(earned, values, gamma=gamma, lam=0.0), errors, atol=1e-12)


@given(rewards, rewards, shares, shares)
def test_identity_3_a_single_step_gets_reward_minus_value(reward, value, gamma, lam) -> None:
    values = {"t-0": np.array([value], np.float32)}
    credit = assign(StepPO(gamma=gamma, lam=lam).build(), make_group(make_trajectory("t", [2], [reward])), values)
    assert credit["t-0"].advantages.tolist() == [np.float32(reward - value)] * 2


@given(st.lists(numbers, min_size=1, max_size=8), shares, shares)
def test_identity_4_a_perfect_critic_of_a_deterministic_chain_leaves_no_advantage(earned, gamma, lam) -> None:
    values = [sum(gamma**k * r for k, r in enumerate(earned[n:])) for n in range(len(earned))]
    np.testing.assert_allclose(gae(earned, values, gamma=gamma, lam=lam), 0, atol=1e-9)


def test_identity_4_fails_off_the_path_that_the_critic_was_perfect_for() -> None:
    assert gae([0.0, 0.5], [1.0, 1.0], gamma=1.0, lam=1.0).tolist() == [-0.5, -0.5]


CHAINS = [([0.0, 1.0, 3.0], [0.5, 0.25, 2.0]), ([2.0, -1.0], [0.0, 1.0]), ([4.0], [1.0])]


def all_steps(scale: float = 1.0, shift: float = 0.0, *, with_values: bool = True, gamma: float = 0.9) -> np.ndarray:
    """Advantages of all steps of three trajectories, with each reward made scale·r + shift, and the values to suit."""
    found = []
    for earned, values in CHAINS:
        ahead = [sum(gamma**k for k in range(len(earned) - n)) for n in range(len(earned))]
        said = [scale * v + shift * a for v, a in zip(values, ahead, strict=True)] if with_values else values
        found.append(gae([scale * r + shift for r in earned], said, gamma=gamma, lam=0.8))
    return np.concatenate(found)


@pytest.mark.parametrize(("scale", "shift"), [(3.0, 0.0), (1.0, 5.0), (0.25, -2.0)])
def test_identity_5_whitened_credit_keeps_when_rewards_change_affinely_if_the_values_do_too(scale, shift) -> None:
    np.testing.assert_allclose(whitened(all_steps(scale, shift)), whitened(all_steps()), atol=1e-7)


@pytest.mark.parametrize(("scale", "shift"), [(3.0, 0.0), (1.0, 5.0)])
def test_identity_5_fails_if_the_values_stay(scale, shift) -> None:
    unscaled = whitened(all_steps(scale, shift, with_values=False))
    assert np.abs(unscaled - whitened(all_steps())).max() > 0.1


def test_identity_5_a_row_that_is_counted_twice_changes_everybodys_whitened_credit() -> None:
    once = all_steps()
    twice = whitened(np.append(once, once[0]))[:-1]
    assert (np.abs(twice - whitened(once)) > 1e-3).all()


@pytest.mark.parametrize("make", [GRPO, StepPO, PPO, GiGPO, SeeUPO])
@given(group=groups(), random=st.randoms(use_true_random=False))
def test_identity_9_the_order_of_trajectories_in_a_batch_leaves_credit_unchanged(make, group: Group, random) -> None:
    algorithm = make().build()
    inputs = make_inputs(algorithm, group, make_values(algorithm, group))
    shuffled = random.sample(group.trajectories, len(group.trajectories))
    straight = {c.step_id: c.advantages for c in algorithm.assign(group, inputs)}
    mixed = {c.step_id: c.advantages for c in algorithm.assign(replace(group, trajectories=tuple(shuffled)), inputs)}
    assert straight.keys() == mixed.keys()
    for step_id, advantages in straight.items():
        np.testing.assert_allclose(mixed[step_id], advantages, atol=1e-5)


def one_step_each(returns: list[float]) -> Group:
    return make_group(*(make_trajectory(f"t{i}", [1 + i % 3], [r]) for i, r in enumerate(returns)))


@given(lists_of_returns)
def test_identity_22_with_one_turn_seeupo_is_gspo_with_the_groups_mean_as_baseline(returns) -> None:
    group = one_step_each(returns)
    gspo = GRPO(scale="none", objective={"ratio": "sequence", "aggregation": "per_sequence"}).build()
    assert assign(SeeUPO().build(), group) == assign(gspo, group)


@given(groups())
def test_identity_22_each_turn_gets_its_trajectorys_advantage_and_a_turn_not_taken_gets_none(group: Group) -> None:
    credit = assign(SeeUPO().build(), group)
    assert credit == assign(GRPO(scale="none").build(), group)
    assert credit.keys() == {step.id for t in group.trajectories for step in t.steps if not step.side}


@given(groups(), st.sampled_from(["std", "none"]))
def test_identity_24_gigpo_without_weight_on_states_is_grpo(group: Group, scale) -> None:
    assert assign(GiGPO(omega=0.0, scale=scale).build(), group) == assign(GRPO(scale=scale).build(), group)


def in_states_of_their_own(trajectory: Trajectory, first: int) -> Trajectory:
    for place in range(len(trajectory.steps)):
        trajectory = with_step(trajectory, place, prompt_ids=[first + place])
    return trajectory


@given(groups(), st.floats(0, 5))
def test_identity_24_where_no_state_comes_again_gigpo_is_grpo(group: Group, omega) -> None:
    apart = (in_states_of_their_own(t, 100 * i) for i, t in enumerate(group.trajectories))
    unique = make_group(*apart)
    assert assign(GiGPO(omega=omega).build(), unique) == assign(GRPO().build(), unique)


def test_identity_24_fails_where_one_does() -> None:
    group = make_group(make_trajectory("a", [1, 1], [0.0, 1.0]), make_trajectory("b", [1], [0.0]))
    assert assign(GiGPO().build(), group) != assign(GRPO().build(), group)


@given(lists_of_returns, st.sampled_from(["std", "none"]))
def test_identity_24_with_one_turn_from_one_state_both_parts_of_gigpo_are_the_same(returns, scale) -> None:
    states = ["s"] * len(returns)
    episode = group_advantages(returns, scale=scale)
    np.testing.assert_array_equal(anchored_advantages(returns, states, scale=scale), episode)
    doubled = assign(GiGPO(scale=scale).build(), one_step_each(returns))
    for credit, advantage in zip(doubled.values(), episode, strict=True):
        np.testing.assert_allclose(credit.advantages, 2 * advantage, rtol=1e-6)


@given(st.lists(st.lists(grid, min_size=1, max_size=4), min_size=2, max_size=5))
def test_identity_24_undiscounted_it_is_so_at_the_first_turn_of_longer_trajectories(earned) -> None:
    trajectories = []
    for number, step_rewards in enumerate(earned):
        whole = make_trajectory(f"t{number}", [1] * len(step_rewards), step_rewards)
        trajectories.append(with_step(in_states_of_their_own(whole, 1000 * number), 0, prompt_ids=[7]))
    group = make_group(*trajectories)
    both, episode = assign(GiGPO(gamma=1.0).build(), group), assign(GRPO().build(), group)
    for trajectory in trajectories:
        first = trajectory.steps[0].id
        np.testing.assert_allclose(both[first].advantages, 2 * episode[first].advantages, rtol=1e-5, atol=1e-5)


@given(lists_of_returns)
def test_identity_24_leave_one_out_is_the_mean_only_advantage_scaled_by_n_over_n_minus_1(returns) -> None:
    n = len(returns)
    np.testing.assert_allclose(leave_one_out(returns), n / (n - 1) * (returns - np.mean(returns)), atol=1e-10)


@given(st.lists(grid, min_size=2, max_size=6), st.integers(0, 3), st.data())
def test_identity_25_siblings_forked_at_a_state_have_the_mean_only_advantage_of_its_anchor_group(
    returns, fork, data
) -> None:
    siblings, after = [], itertools.count(1000)
    for number, reward in enumerate(returns):
        length = data.draw(st.integers(fork + 1, fork + 3))
        trajectory = make_trajectory(f"t{number}", [1] * length, [0.0] * (length - 1) + [reward])
        for place in range(length):  # the same up to the fork, and never again
            state = place if place <= fork else next(after)
            trajectory = with_step(trajectory, place, prompt_ids=[state])
        siblings.append(trajectory)
    group = make_group(*siblings)
    both = assign(GiGPO(gamma=1.0, scale="none").build(), group)
    episode = assign(GRPO(scale="none").build(), group)
    for trajectory, sibling_mean in zip(siblings, returns - np.mean(returns), strict=True):
        forked = trajectory.steps[fork].id
        of_state = both[forked].advantages - episode[forked].advantages
        np.testing.assert_allclose(of_state, sibling_mean, rtol=1e-5, atol=1e-5)


@given(chains)
def test_identity_26_undiscounted_with_lambda_1_step_gae_is_the_return_minus_the_value_of_that_state_alone(
    chain,
) -> None:
    earned, values = [r for r, _ in chain], [v for _, v in chain]
    assume(len(chain) > 1)
    advantages = gae(earned, values, gamma=1.0, lam=1.0)
    for k in range(len(chain)):
        assert advantages[k] == pytest.approx(sum(earned[k:]) - values[k], abs=1e-9)
