"""StepPO: one decision per step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.gae import gae
from stepwell.algorithms.steppo import CAPO, StepPO
from tests.algorithms.builders import assign, left_in, lengths, make_group, make_trajectory, rewards, with_step

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


def test_a_truncated_trajectory_goes_on_from_the_state_it_was_left_in() -> None:
    cut = left_in(make_trajectory("t", [2, 1], [0.0, 1.0]), reward=3.0)
    values = {"t-0": [0.0], "t-1": [2.0], "t-2": [8.0]}
    said = {step_id: np.array(value, np.float32) for step_id, value in values.items()}
    credit = assign(StepPO(gamma=0.5).build(), make_group(cut), said)
    assert credit.keys() == {"t-0", "t-1"}
    assert credit["t-1"].advantages.tolist() == [4.0 + 0.5 * 8.0 - 2.0]
    assert credit["t-1"].value_targets.tolist() == [8.0]
    assert credit["t-0"].advantages.tolist() == [0.5 * 4.0 + 0.25 * 8.0] * 2


@pytest.mark.parametrize(
    "ended",
    [
        {"status": "terminated"},
        {"status": "truncated", "released": True},
        {"status": "truncated", "unrecorded": True},
    ],
)
def test_an_episode_that_ended_or_whose_last_state_nobody_knows_is_worth_nothing_more(ended) -> None:
    trajectory = left_in(make_trajectory("t", [1], [1.0]))
    if ended.get("unrecorded"):
        trajectory = make_trajectory("t", [1], [1.0])
    trajectory = replace(trajectory, status=ended["status"])
    said = {"t-0": np.zeros(1, np.float32), "t-1": np.full(1, 8, np.float32)}
    algorithm = StepPO(bootstrap_on_truncation=not ended.get("released")).build()
    assert assign(algorithm, make_group(trajectory), said)["t-0"].advantages.tolist() == [1.0]


def test_a_step_beside_the_agents_work_is_no_decision_and_costs_no_discount() -> None:
    trajectory = with_step(make_trajectory("t", [1, 3, 1], [0.0, 2.0, 4.0]), 1, side="title")
    credit = assign(StepPO(gamma=0.5).build(), make_group(trajectory))
    assert {k: c.advantages.tolist() for k, c in credit.items()} == {"t-0": [2.0 + 0.5 * 4.0], "t-2": [4.0]}


def test_an_aborted_step_is_a_decision_still() -> None:
    trajectory = with_step(make_trajectory("t", [1, 3, 1], [0.0, 0.0, 4.0]), 1, finish_reason="abort")
    credit = assign(StepPO(gamma=0.5).build(), make_group(trajectory))
    assert credit["t-0"].advantages.tolist() == [1.0]


def test_the_two_versions_of_the_paper_differ_in_their_ratio_alone() -> None:
    v4, v5 = StepPO().build(), CAPO().build()
    assert (v4.objective.ratio, v5.objective.ratio) == ("geo", "sqrt")
    assert (v4.objective.clip, v5.objective.clip) == ((3e-4, 3e-4), (1e-3, 1e-3))
    group = make_group(make_trajectory("t", [2, 1], [0.0, 1.0]))
    assert assign(v4, group) == assign(v5, group)
