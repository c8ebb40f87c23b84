"""Which steps of a trajectory are decisions, and what each earned."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from stepwell.algorithms.base import Inputs
from stepwell.algorithms.decisions import credit_evenly, decisions, value_after
from stepwell.errors import InvalidRecord
from stepwell.types import Trajectory
from tests.algorithms.builders import left_in, make_group, make_trajectory, trajectories, with_step


@given(trajectories("t"))
def test_nothing_that_was_earned_after_the_first_decision_is_lost(trajectory: Trajectory) -> None:
    steps, earned = decisions(trajectory)
    assert [step.id for step in steps] == [step.id for step in trajectory.steps if not step.side]
    first = next((i for i, step in enumerate(trajectory.steps) if not step.side), len(trajectory.steps))
    assert earned.sum() == pytest.approx(sum(trajectory.step_rewards[first:]), abs=1e-5)


def test_a_reward_at_a_step_beside_the_work_belongs_to_the_decision_before_it() -> None:
    trajectory = with_step(make_trajectory("t", [1, 1, 1, 1], [8.0, 1.0, 2.0, 4.0]), 0, side="title")
    trajectory = with_step(trajectory, 2, side="other")
    steps, earned = decisions(trajectory)
    assert [step.index for step in steps] == [1, 3]
    assert earned.tolist() == [1.0 + 2.0, 4.0]


def test_what_a_whole_truncated_trajectory_earned_is_its_last_decisions_though_it_stands_at_the_state_after_it() -> (
    None
):
    _, earned = decisions(left_in(make_trajectory("t", [1, 1], [0.0, 0.5]), reward=2.0))
    assert earned.tolist() == [0.0, 2.5]


def test_steps_that_nobody_can_train_on_keep_their_place() -> None:
    trajectory = with_step(make_trajectory("t", [1, 0, 1], [1.0, 2.0, 4.0]), 2, finish_reason="abort")
    steps, earned = decisions(trajectory)
    assert [step.index for step in steps] == [0, 1, 2]
    assert earned.tolist() == [1.0, 2.0, 4.0]


def test_even_credit_is_for_the_agents_own_steps() -> None:
    group = make_group(left_in(make_trajectory("a", [1, 2], [0.0, 1.0])), make_trajectory("b", [0], [0.0]))
    credit = {c.step_id: c.advantages.tolist() for c in credit_evenly(group, [0.5, -0.5])}
    assert credit == {"a-0": [0.5], "a-1": [0.5, 0.5], "b-0": []}


def test_the_value_after_the_last_decision_is_that_of_a_recorded_state_of_a_truncated_trajectory_alone() -> None:
    cut = left_in(make_trajectory("t", [1], [1.0]))
    inputs = Inputs(values={"t-1": np.array([3.0], np.float32)})
    assert value_after(cut, inputs, bootstrap=True) == 3.0
    assert value_after(cut, inputs, bootstrap=False) == 0.0
    assert value_after(replace(cut, status="terminated"), inputs, bootstrap=True) == 0.0
    unrecorded = make_trajectory("t", [1, 1], [1.0, 0.0], status="truncated")
    assert value_after(unrecorded, inputs, bootstrap=True) == 0.0
    with pytest.raises(InvalidRecord, match="no value for step t-1"):
        value_after(cut, Inputs(), bootstrap=True)
