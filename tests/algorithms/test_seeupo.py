"""SeeUPO: credit, and which update it asks for."""

from stepwell.algorithms.base import Sweep
from stepwell.algorithms.seeupo import SeeUPO
from tests.algorithms.builders import assign, make_group, make_trajectory


def test_every_turn_gets_the_reward_minus_the_groups_mean_and_turns_that_were_not_taken_get_nothing() -> None:
    group = make_group(make_trajectory("a", [1, 2, 1], [0.0, 0.0, 3.0]), make_trajectory("b", [2], [1.0]))
    credit = assign(SeeUPO().build(), group)
    assert {k: c.advantages.tolist() for k, c in credit.items()} == {
        "a-0": [1.0],
        "a-1": [1.0, 1.0],
        "a-2": [1.0],
        "b-0": [-1.0, -1.0],
    }


def test_the_papers_update_carries_whole_ratios_against_the_policy_before_it() -> None:
    algorithm = SeeUPO().build()
    assert algorithm.sweep == Sweep(order="reverse", ratio="exact", bounds=None, recompute_old=False)
    assert (algorithm.whiten, algorithm.objective.ratio) == ("step", "geo")
    assert algorithm.advantage_bound is None


def test_the_released_update_carries_bounded_means_against_the_policy_before_each_turn() -> None:
    algorithm = SeeUPO(mode="released", order="forward").build()
    assert algorithm.advantage_bound == 3.0
    assert algorithm.sweep == Sweep(order="forward", ratio="geo", bounds=(0.8, 1.2), recompute_old=True)
