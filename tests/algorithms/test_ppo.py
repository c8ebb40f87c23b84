"""Token PPO: where rewards and values stand in the sequence of a trajectory's tokens."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stepwell.algorithms.ppo import PPO
from tests.algorithms.builders import (
    assign,
    left_in,
    make_group,
    make_trajectory,
    repeated,
    with_step,
    with_step_values,
)

shares = st.floats(0, 1)


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


def test_a_truncated_trajectory_goes_on_from_the_state_it_was_left_in() -> None:
    cut = left_in(make_trajectory("t", [2, 1], [0.0, 1.0]), reward=3.0)
    values = {"t-0": np.zeros(2, np.float32), "t-1": np.zeros(1, np.float32), "t-2": np.array([8.0], np.float32)}
    credit = assign(PPO(gamma=0.5).build(), make_group(cut), values)
    assert credit["t-1"].advantages.tolist() == [1.0 + 3.0 + 0.5 * 8.0]
    assert credit["t-0"].advantages.tolist() == [0.25 * 8.0, 0.5 * 8.0]
    ended = assign(PPO(gamma=0.5, bootstrap_on_truncation=False).build(), make_group(cut), values)
    assert ended["t-1"].advantages.tolist() == [4.0]
    assert credit.keys() == ended.keys() == {"t-0", "t-1"}


def test_tokens_beside_the_agents_work_are_skipped_as_observations_are() -> None:
    plain = make_trajectory("t", [2, 1, 2], [0.0, 5.0, 1.0])
    beside = with_step(plain, 1, side="title")
    values = {f"t-{i}": np.full(n, i + 1.0, np.float32) for i, n in enumerate([2, 1, 2])} | {
        "t-1": np.array([9.0], np.float32)
    }
    credit = assign(PPO(gamma=0.5, lam=0.5).build(), make_group(beside), values)
    dense = make_trajectory("d", [2, 2], [5.0, 1.0])
    want = assign(PPO(gamma=0.5, lam=0.5).build(), make_group(dense), {"d-0": values["t-0"], "d-1": values["t-2"]})
    assert credit["t-0"].advantages.tolist() == want["d-0"].advantages.tolist()
    assert credit["t-2"].advantages.tolist() == want["d-1"].advantages.tolist()


@given(with_step_values(), st.floats(0, 1), st.floats(0, 1))
def test_a_critic_read_once_per_step_is_one_that_says_the_same_before_each_token_and_learns_the_first(
    case, gamma, lam
) -> None:
    trajectory, values = case
    once = assign(PPO(gamma=gamma, lam=lam, critic="step").build(), make_group(trajectory), values)
    each = assign(PPO(gamma=gamma, lam=lam).build(), make_group(trajectory), repeated(trajectory, values))
    for step_id, credit in once.items():
        assert credit.advantages.tolist() == each[step_id].advantages.tolist()
        assert credit.value_targets.tolist() == each[step_id].value_targets[:1].tolist()


@pytest.mark.parametrize("critic", ["token", "step"])
def test_the_critic_is_asked_where_it_is_supervised(critic) -> None:
    algorithm = PPO(critic=critic, whiten="none").build()
    assert (algorithm.needs_values, algorithm.whiten) == (critic, "none")
