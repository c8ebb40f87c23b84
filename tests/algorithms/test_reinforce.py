"""REINFORCE++ and its variant with a group baseline."""

from stepwell.algorithms.reinforce import ReinforcePP
from tests.algorithms.builders import assign, make_group, make_trajectory


def test_a_token_gets_the_return_from_there_on_discounted_per_token() -> None:
    credit = assign(ReinforcePP(gamma=0.5).build(), make_group(make_trajectory("t", [2, 0, 1], [4.0, 2.0, 8.0])))
    assert credit["t-0"].advantages.tolist() == [(6.0 + 4.0) / 2, 6.0 + 4.0]
    assert credit["t-1"].advantages.tolist() == []
    assert credit["t-2"].advantages.tolist() == [8.0]


def test_early_steps_get_the_rewards_of_later_ones() -> None:
    credit = assign(ReinforcePP().build(), make_group(make_trajectory("t", [1, 2, 1], [0.0, 0.0, 1.0])))
    assert [credit[f"t-{i}"].advantages.tolist() for i in range(3)] == [[1.0], [1.0, 1.0], [1.0]]


def test_with_a_group_baseline_all_tokens_get_the_reward_minus_the_groups_mean() -> None:
    group = make_group(make_trajectory("a", [1, 2], [1.0, 2.0]), make_trajectory("b", [2], [1.0]))
    credit = assign(ReinforcePP(baseline="group").build(), group)
    assert {k: c.advantages.tolist() for k, c in credit.items()} == {"a-0": [1], "a-1": [1, 1], "b-0": [-1, -1]}


def test_a_group_of_one_is_its_own_baseline() -> None:
    alone = make_group(make_trajectory("a", [1, 2], [1.0, 2.0]))
    assert assign(ReinforcePP(baseline="group").build(), alone)["a-1"].advantages.tolist() == [0.0, 0.0]
    assert assign(ReinforcePP().build(), alone)["a-1"].advantages.tolist() == [2.0, 2.0]


def test_it_is_whitened_over_all_tokens_of_an_update() -> None:
    assert ReinforcePP().build().whiten == "token"
