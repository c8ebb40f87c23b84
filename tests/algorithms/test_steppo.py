"""StepPO: one decision per step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.gae import gae
from stepwell.algorithms.steppo import StepPO
from tests.algorithms.builders import assign, lengths, make_group, make_trajectory, rewards

shares = st.floats(0, 1)


@given(lengths, st.data(), shares, shares)
def test_credit_is_the_gae_of_the_steps_whatever_their_lengths(tokens, data, gamma, lam) -> None:
    drawn = st.lists(rewards, min_size=len(tokens), max_size=len(tokens))
    trajectory = make_trajectory("t", tokens, data.draw(drawn))
    values = {step.id: np.array([v], np.float32) for step, v in zip(trajectory.steps, data.draw(drawn), strict=True)}
    credit = assign(StepPO(gamma=gamma, lam=lam).build(), make_group(trajectory), values)
    flat = [float(values[step.id][0]) for step in trajectory.steps]
    want = gae(trajectory.step_rewards, flat, gamma=gamma, lam=lam)
    for step, advantage, value in zip(trajectory.steps, want, flat, strict=True):
        assert credit[step.id].advantages.tolist() == [np.float32(advantage)] * len(step.response_ids)
        assert credit[step.id].value_targets == pytest.approx([advantage + value], rel=1e-6, abs=1e-6)


def test_the_critic_learns_the_discounted_return_itself_not_the_whitened_one() -> None:
    trajectory = make_trajectory("t", [4, 1, 2], [0.0, 2.0, 8.0])
    values = {f"t-{i}": np.array([v], np.float32) for i, v in enumerate((3.0, -1.0, 0.25))}
    credit = assign(StepPO(gamma=0.5).build(), make_group(trajectory), values)
    assert [credit[f"t-{i}"].value_targets.tolist() for i in range(3)] == [[3.0], [6.0], [8.0]]


def test_each_trajectory_is_credited_on_its_own() -> None:
    first, second = make_trajectory("a", [1, 2], [0.0, 1.0]), make_trajectory("b", [3], [-4.0])
    algorithm = StepPO().build()
    together = assign(algorithm, make_group(first, second))
    assert together == assign(algorithm, make_group(first)) | assign(algorithm, make_group(second))


def test_a_step_without_tokens_keeps_its_place_in_the_chain_and_its_own_target() -> None:
    credit = assign(StepPO(gamma=0.5).build(), make_group(make_trajectory("t", [1, 0, 1], [0.0, 0.0, 4.0])))
    assert credit["t-0"].advantages.tolist() == [1.0]
    assert credit["t-1"].advantages.tolist() == []
    assert credit["t-1"].value_targets.tolist() == [2.0]
