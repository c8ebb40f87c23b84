"""Token PPO: where rewards and values stand in the sequence of a trajectory's tokens."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from stepwell.algorithms.ppo import PPO
from stepwell.algorithms.steppo import StepPO
from stepwell.types import Trajectory
from tests.algorithms.builders import assign, lengths, make_group, make_trajectory, rewards

shares = st.floats(0, 1)


@st.composite
def with_step_values(draw: st.DrawFn, tokens=lengths) -> tuple[Trajectory, dict[str, np.ndarray]]:
    """A trajectory, and one critic's value per step by step id."""
    counts = draw(tokens)
    drawn = st.lists(rewards, min_size=len(counts), max_size=len(counts))
    trajectory = make_trajectory("t", counts, draw(drawn))
    values = draw(drawn)
    return trajectory, {s.id: np.array([v], np.float32) for s, v in zip(trajectory.steps, values, strict=True)}


def repeated(trajectory: Trajectory, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The value of each step, said again before each of its tokens."""
    return {step.id: np.repeat(values[step.id], len(step.response_ids)) for step in trajectory.steps}


@given(with_step_values(tokens=st.lists(st.just(1), max_size=6)), shares, shares)
def test_where_every_step_has_one_token_token_ppo_gives_the_credit_of_steppo(case, gamma, lam) -> None:
    trajectory, values = case
    tokens = assign(PPO(gamma=gamma, lam=lam).build(), make_group(trajectory), values)
    steps = assign(StepPO(gamma=gamma, lam=lam).build(), make_group(trajectory), values)
    assert tokens == steps


@given(with_step_values(tokens=st.lists(st.integers(1, 4), max_size=5)))
def test_undiscounted_with_a_critic_that_is_constant_within_steps_every_token_has_its_steps_advantage(case) -> None:
    trajectory, values = case
    tokens = assign(PPO().build(), make_group(trajectory), repeated(trajectory, values))
    steps = assign(StepPO(gamma=1.0).build(), make_group(trajectory), values)
    for step in trajectory.steps:
        np.testing.assert_allclose(tokens[step.id].advantages, steps[step.id].advantages, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(tokens[step.id].value_targets, steps[step.id].value_targets[0], atol=1e-4)


def test_with_a_discount_per_token_the_first_tokens_of_a_long_step_lose_more_than_the_step_does() -> None:
    trajectory = make_trajectory("t", [3, 2], [0.0, 1.0])
    tokens = assign(PPO(gamma=0.5).build(), make_group(trajectory))
    assert tokens["t-0"].advantages.tolist() == [0.5**4, 0.5**3, 0.5**2]
    assert tokens["t-1"].advantages.tolist() == [0.5, 1.0]
    steps = assign(StepPO(gamma=0.5).build(), make_group(trajectory))
    assert steps["t-0"].advantages.tolist() == [0.5, 0.5, 0.5]
    assert steps["t-1"].advantages.tolist() == [1.0, 1.0]


def test_a_steps_reward_arrives_at_its_last_token_and_the_next_steps_first_value_follows_it() -> None:
    trajectory = make_trajectory("t", [2, 2], [3.0, 7.0])
    values = {"t-0": np.array([0.5, 1.0], np.float32), "t-1": np.array([2.0, 4.0], np.float32)}
    credit = assign(PPO(lam=0.0).build(), make_group(trajectory), values)
    assert credit["t-0"].advantages.tolist() == [1.0 - 0.5, 3.0 + 2.0 - 1.0]
    assert credit["t-1"].advantages.tolist() == [4.0 - 2.0, 7.0 - 4.0]


@given(with_step_values(), shares, shares)
def test_targets_are_the_advantage_plus_the_value_that_it_was_measured_from(case, gamma, lam) -> None:
    trajectory, values = case
    spread = repeated(trajectory, values)
    for step_id, credit in assign(PPO(gamma=gamma, lam=lam).build(), make_group(trajectory), spread).items():
        np.testing.assert_allclose(credit.value_targets, credit.advantages + spread[step_id], rtol=1e-4, atol=1e-4)


@given(with_step_values(), shares, shares)
def test_a_step_without_tokens_passes_its_reward_to_the_token_before_it(case, gamma, lam) -> None:
    trajectory, values = case
    counts = [len(step.response_ids) for step in trajectory.steps]
    assume(counts and counts[0])
    algorithm = PPO(gamma=gamma, lam=lam).build()
    credit = assign(algorithm, make_group(trajectory), repeated(trajectory, values))

    kept = [i for i, count in enumerate(counts) if count]
    folded = [sum(trajectory.step_rewards[i:j]) for i, j in zip(kept, [*kept[1:], len(counts)], strict=True)]
    dense = make_trajectory("dense", [counts[i] for i in kept], folded)
    same_values = {f"dense-{n}": repeated(trajectory, values)[f"t-{i}"] for n, i in enumerate(kept)}
    reference = assign(algorithm, make_group(dense), same_values)
    for number, i in enumerate(kept):
        want = reference[f"dense-{number}"].advantages
        np.testing.assert_allclose(credit[f"t-{i}"].advantages, want, rtol=1e-5, atol=1e-5)
    assert all(len(credit[f"t-{i}"].advantages) == 0 for i in range(len(counts)) if i not in kept)


def test_a_reward_before_the_first_token_is_nobodys_merit() -> None:
    credit = assign(PPO().build(), make_group(make_trajectory("t", [0, 2], [100.0, 1.0])))
    assert credit["t-1"].advantages.tolist() == [1.0, 1.0]
