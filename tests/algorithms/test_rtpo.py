"""RTPO's credit among siblings. Numbers in names: identities of docs/papers.md."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.base import Inputs
from stepwell.algorithms.gae import gae
from stepwell.algorithms.gigpo import anchored_advantages
from stepwell.algorithms.grpo import GRPO, group_advantages
from stepwell.algorithms.rtpo import (
    RTPO,
    continuation_weight,
    generated_turns,
    pool_equal_states,
    sibling_advantages,
)
from stepwell.config import load_config
from stepwell.errors import ConfigError, InvalidRecord
from stepwell.trainer.collate import make_samples
from stepwell.types import Credit, Group, Trajectory
from tests.algorithms.builders import left_in, make_group, make_trajectory, with_step

returns = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=8)
FIELDS = ("mean", "leave_one_out")


def siblings(
    rewards: Sequence[float], k: int, turns: int = 3, prompt: Sequence[int] = (7, 7), name: str = "s"
) -> Group:
    """Siblings that took step `k` of their origin anew, each rewarded at its end."""
    made = [
        with_step(make_trajectory(f"{name}{n}", [2] * turns, [0.0] * (turns - 1) + [r]), k, prompt_ids=list(prompt))
        for n, r in enumerate(rewards)
    ]
    group = make_group(*made)
    return replace(group, info=replace(group.info, origin_id="trunk", origin_index=k))


def credits(config: RTPO, group: Group, inputs: Inputs | None = None) -> dict[str, Credit]:
    return {credit.step_id: credit for credit in config.build().assign(group, inputs or Inputs())}


def trained(found: dict[str, Credit]) -> dict[str, list[float]]:
    return {name: credit.advantages.tolist() for name, credit in found.items() if credit.trained}


def values(group: Group, k: int, value: float) -> Inputs:
    """A critic that says `value` of the state before step `k`, and 0 of what a trajectory was left in."""
    steps = [step for trajectory in group.trajectories for step in trajectory.steps]
    return Inputs(values={step.id: np.array([value if step.index == k else 0.0], np.float32) for step in steps})


@given(returns, st.sampled_from(FIELDS), st.sampled_from(["none", "std"]))
def test_identity_16_siblings_advantages_sum_to_0_and_are_0_where_all_did_equally_well(group, baseline, scale) -> None:
    assert sibling_advantages(group, baseline, scale=scale).sum() == pytest.approx(0, abs=1e-9)
    assert sibling_advantages([group[0]] * len(group), baseline, scale=scale).tolist() == [0.0] * len(group)


@given(st.floats(-100, 100), st.sampled_from(FIELDS), st.sampled_from(["none", "std"]))
def test_identity_16_with_g_2_the_only_sibling_is_compared_with_itself(reward, baseline, scale) -> None:
    assert sibling_advantages([reward], baseline, scale=scale).tolist() == [0.0]


@pytest.mark.parametrize("baseline", FIELDS)
@pytest.mark.parametrize("zero_advantage", ["keep", "skip"])
def test_identity_16_a_single_sibling_is_left_out_of_the_loss_and_counted(baseline, zero_advantage) -> None:
    config = RTPO(baseline=baseline, zero_advantage=zero_advantage)
    alone = siblings([1.0], k=1)
    assert trained(credits(config, alone)) == {}
    assert config.build().diagnose(alone, Inputs())["single_sibling_rate"] == 1.0


@given(returns)
def test_identity_17_leave_one_out_is_the_mean_s_advantage_times_n_over_n_minus_1(group) -> None:
    n = len(group)
    if n > 1:
        np.testing.assert_allclose(
            sibling_advantages(group, "leave_one_out"), sibling_advantages(group) * n / (n - 1), atol=1e-12
        )


@given(st.lists(st.integers(0, 1).map(float), min_size=2, max_size=6))
def test_identity_17_leave_one_out_compares_each_with_the_mean_of_the_others(group) -> None:
    others = [np.mean(group[:j] + group[j + 1 :]) for j in range(len(group))]
    np.testing.assert_allclose(sibling_advantages(group, "leave_one_out"), np.subtract(group, others), atol=1e-12)


@given(st.lists(st.integers(-8, 8).map(float), min_size=2, max_size=5), st.sampled_from([1, 3]))
def test_identity_15_with_one_turn_it_is_grpo_without_its_deviation(rewards, tokens) -> None:
    group = make_group(*(make_trajectory(f"t{n}", [tokens], [r]) for n, r in enumerate(rewards)))
    plain = {credit.step_id: credit for credit in GRPO(scale="none").build().assign(group, Inputs())}
    assert credits(RTPO(), group) == plain
    assert RTPO().build().objective.aggregation == "per_step"


@pytest.mark.parametrize("k", [0, 1, 2])
def test_identity_20_only_the_step_that_was_taken_anew_is_trained(k) -> None:
    got = credits(RTPO(), siblings([1.0, 0.0, 0.0, 0.0], k))
    assert trained(got) == {f"s{n}-{k}": [0.75 if n == 0 else -0.25] * 2 for n in range(4)}
    assert len(got) == 12
    assert all(not credit.advantages.any() for credit in got.values() if not credit.trained)


def test_identity_20_the_loss_is_given_no_token_of_the_trunk_of_prefixes_or_of_continuations() -> None:
    group = siblings([1.0, 0.0], k=1)
    samples = make_samples([group], credits(RTPO(), group), {})
    assert [sample.step_id for sample in samples] == ["s0-1", "s1-1"]


def test_a_plain_group_took_its_first_step_anew_wherever_a_side_step_stands() -> None:
    titled = with_step(make_trajectory("a", [2, 2], [0.0, 1.0]), 0, side="title")
    got = credits(RTPO(plain_groups="first_step"), make_group(titled, make_trajectory("b", [2, 2], [0.0, 0.0])))
    assert trained(got) == {"a-1": [0.5, 0.5], "b-0": [-0.5, -0.5]}


@pytest.mark.parametrize("of", ["credit", "diagnosis"])
def test_a_group_of_longer_trajectories_that_was_not_forked_is_refused_with_the_remedy(of) -> None:
    plain = make_group(make_trajectory("a", [2, 2], [0.0, 1.0]), make_trajectory("b", [2], [0.0]))
    algorithm = RTPO().build()
    with pytest.raises(InvalidRecord, match="plain_groups: first_step"):
        (algorithm.assign if of == "credit" else algorithm.diagnose)(plain, Inputs())
    assert list(trained(credits(RTPO(plain_groups="first_step"), plain))) == ["a-0", "b-0"]


def test_a_step_beside_the_agents_work_makes_no_trajectory_longer() -> None:
    titled = with_step(make_trajectory("a", [2, 2], [0.0, 1.0]), 1, side="title")
    assert list(trained(credits(RTPO(), make_group(titled, make_trajectory("b", [2], [0.0]))))) == ["a-0", "b-0"]


@pytest.mark.parametrize("k", [0, 1, 2])
def test_identity_21_turns_that_siblings_played_themselves_are_counted_and_make_up_the_cost(k) -> None:
    count = RTPO().build().diagnose
    assert count(siblings([1.0, 0.0], k), Inputs())["generated_turns"] == 2 * (3 - k)
    played = sum(count(siblings([1.0, 0.0], turn), Inputs())["generated_turns"] for turn in range(3))
    assert 3 + played == generated_turns(3, 2)


def test_what_was_earned_before_the_step_is_no_merit_of_it() -> None:
    group = siblings([1.0, 0.0], k=1)
    early = [replace(t, step_rewards=(9.0, *t.step_rewards[1:]), reward=t.reward + 9) for t in group.trajectories]
    inputs = values(group, 1, 0.25)
    for config in (RTPO(), RTPO(baseline="critic")):
        richer = credits(config, replace(group, trajectories=tuple(early)), inputs)
        assert trained(richer) == trained(credits(config, group, inputs))


def test_a_sibling_that_did_not_get_that_far_counts_in_the_comparison_only() -> None:
    group = siblings([1.0, 0.0], k=2)
    short = make_trajectory("short", [2], [0.0])
    got = credits(RTPO(), replace(group, trajectories=(*group.trajectories, short)))
    assert [round(part[0], 5) for part in trained(got).values()] == [round(2 / 3, 5), round(-1 / 3, 5)]


def test_siblings_of_an_origin_that_saw_different_prompts_are_refused_and_a_plain_group_is_not() -> None:
    one, other = siblings([1.0], 1, prompt=[7]), siblings([0.0], 1, prompt=[8], name="o")
    forked = replace(one, trajectories=one.trajectories + other.trajectories)
    with pytest.raises(InvalidRecord, match="same prompt at step 1"):
        credits(RTPO(), forked)
    plain = [with_step(make_trajectory(f"t{n}", [1], [float(n)]), 0, prompt_ids=[n + 1]) for n in range(2)]
    assert len(trained(credits(RTPO(), make_group(*plain)))) == 2


@given(st.lists(st.integers(0, 8).map(float), min_size=2, max_size=6))
def test_identity_25_one_state_s_siblings_are_gigpo_s_anchor_group(rewards) -> None:
    np.testing.assert_array_equal(
        sibling_advantages(rewards), anchored_advantages(rewards, ["state"] * len(rewards), scale="none")
    )


def test_identity_25_and_are_not_where_the_anchor_is_not_their_state() -> None:
    rewards = [1.0, 0.0, 0.0]
    apart = anchored_advantages(rewards, ["state", "state", "elsewhere"], scale="none")
    assert sibling_advantages(rewards).tolist() != apart.tolist()


@given(st.lists(st.integers(0, 8).map(float), min_size=1, max_size=4), st.floats(-2, 2, width=32), st.integers(0, 2))
def test_identity_26_with_a_critic_it_is_step_gae_with_lambda_and_gamma_1_on_the_step_taken_anew(
    rewards, value, k
) -> None:
    group = siblings(rewards, k)
    got = credits(RTPO(baseline="critic"), group, values(group, k, value))
    for n, reward in enumerate(rewards):
        earned, states = [0.0, 0.0, reward][k:], [value, 0.3, -0.2][: 3 - k]  # with λ = 1 later values cancel
        wanted = gae(earned, states, gamma=1.0, lam=1.0)[0]
        assert got[f"s{n}-{k}"].advantages[0] == pytest.approx(wanted, abs=1e-5)
        assert got[f"s{n}-{k}"].value_targets.tolist() == pytest.approx([reward], abs=1e-5)


def test_identity_26_a_critic_also_says_what_a_truncated_sibling_was_left_with() -> None:
    group = siblings([1.0, 0.0], k=1)
    cut = replace(group, trajectories=tuple(left_in(t) for t in group.trajectories))
    inputs = values(cut, 1, 0.5)
    inputs.values["s0-3"][0] = 2.0
    got = trained(credits(RTPO(baseline="critic"), cut, inputs))
    wanted = gae([0.0, 1.0], [0.5, 0.0], gamma=1.0, lam=1.0, last_value=2.0)[0]
    assert got["s0-1"] == [wanted] * 2
    assert got["s1-1"] == [-0.5] * 2


def test_a_single_sibling_with_a_critic_is_trained() -> None:
    group = siblings([1.0], k=1)
    assert trained(credits(RTPO(baseline="critic"), group, values(group, 1, 0.25))) == {"s0-1": [0.75, 0.75]}


@pytest.mark.parametrize("zero_advantage", ["keep", "skip"])
def test_siblings_that_teach_nothing_are_kept_in_the_mean_or_skipped_but_always_counted(zero_advantage) -> None:
    config, alike = RTPO(zero_advantage=zero_advantage), siblings([1.0, 1.0], k=1)
    assert len(trained(credits(config, alike))) == (2 if zero_advantage == "keep" else 0)
    assert config.build().diagnose(alike, Inputs()) == {
        "siblings": 2,
        "generated_turns": 4,
        "single_sibling_rate": 0,
        "alike_siblings_rate": 1,
    }
    unlike = siblings([1.0, 0.0], k=1)
    assert len(trained(credits(config, unlike))) == 2
    assert config.build().diagnose(unlike, Inputs())["alike_siblings_rate"] == 0


@pytest.mark.parametrize(("turns", "count", "wanted"), [(3, 2, 15), (6, 2, 48), (1, 4, 5), (5, 0, 5)])
def test_identity_21_the_cost_of_the_papers_settings(turns, count, wanted) -> None:
    assert generated_turns(turns, count) == wanted


@given(st.integers(0, 12), st.integers(0, 5))
def test_identity_21_the_cost_is_what_is_counted_turn_by_turn(turns, count) -> None:
    played = turns + sum(turns - k for k in range(turns) for _ in range(count))
    assert generated_turns(turns, count) == played


def current(group: Group, shift: dict[str, float]) -> Inputs:
    """The current policy finds the tokens of these steps likelier by so many nats each."""
    steps = [step for trajectory in group.trajectories for step in trajectory.steps]
    return Inputs(logprobs={s.id: s.logprobs + np.float32(shift.get(s.id, 0.0)) for s in steps})


@given(st.lists(st.integers(0, 8).map(float), min_size=2, max_size=5), st.integers(0, 2))
def test_identity_18_reused_continuations_of_an_unchanged_policy_are_as_good_as_new(rewards, k) -> None:
    group = siblings(rewards, k)
    reused = RTPO(continuation="reused")
    assert reused.build().needs_logprobs
    assert credits(reused, group, current(group, {})) == credits(RTPO(), group)


def test_identity_18_the_weight_of_a_reused_continuation_leaves_the_step_and_its_own_reward_alone() -> None:
    group = siblings([1.0, 1.0], k=1)
    first = replace(group.trajectories[0], step_rewards=(0.0, 0.5, 1.0), reward=1.5)
    group = replace(group, trajectories=(first, group.trajectories[1]))
    shifted = current(group, {"s0-0": 5.0, "s0-1": 5.0, "s0-2": math.log(2) / 2})  # two tokens: a factor of 2
    got = trained(credits(RTPO(continuation="reused"), group, shifted))
    assert got["s0-1"] == pytest.approx([(0.5 + 2 * 1.0 - 1.0) / 2] * 2, rel=1e-5)


@given(st.lists(st.floats(-30, 30), max_size=5), st.floats(0, 1), st.floats(1, 10))
def test_the_weight_of_a_continuation_is_the_bounded_product_of_its_ratios(ratios, low, high) -> None:
    wanted = min(max(math.exp(sum(ratios)), low), high)
    assert continuation_weight(ratios, [0.0] * len(ratios), (low, high)) == pytest.approx(wanted, rel=1e-9)


def test_a_weight_that_overflows_stays_within_its_bounds() -> None:
    assert continuation_weight([1e6], [0.0], (0.1, 10.0)) == 10.0
    assert continuation_weight([-1e6], [0.0], (0.1, 10.0)) == 0.1
    assert continuation_weight([], [], (0.1, 10.0)) == 1.0


def test_a_continuation_that_nobody_scored_is_an_error_and_not_a_weight_of_1() -> None:
    group = siblings([1.0, 0.0], k=1)
    with pytest.raises(InvalidRecord, match="did not score step s0-2"):
        credits(RTPO(continuation="reused"), group, Inputs())


def test_sets_of_the_same_state_are_pooled_whatever_they_were_forked_from() -> None:
    one, two = siblings([1.0, 1.0], 0), siblings([0.0, 0.0], 0, name="t")
    two = replace(two, info=replace(two.info, id="h", origin_id="other"))
    pooled = pool_equal_states([one, two])
    assert len(pooled) == 1
    assert pooled[0].info == replace(one.info, size=4)
    assert [part[0] for part in trained(credits(RTPO(), pooled[0])).values()] == [0.5, 0.5, -0.5, -0.5]
    assert list(trained(credits(RTPO(), one)).values()) == [[0.0, 0.0]] * 2


def test_whether_sets_are_pooled_is_a_setting() -> None:
    assert RTPO().build().regroup is None
    assert RTPO(pool_equal_states=True).build().regroup is pool_equal_states


@pytest.mark.parametrize("what", ["task", "turn", "prompt"])
def test_sets_of_another_task_turn_or_prompt_stay_apart(what) -> None:
    one = siblings([1.0, 0.0], 1)
    other = siblings([1.0, 0.0], 2 if what == "turn" else 1, prompt=[8] if what == "prompt" else (7, 7), name="t")
    if what == "task":
        other = replace(other, info=replace(other.info, task_id="another"))
    assert pool_equal_states([one, other]) == [one, other]


def test_a_set_without_one_state_is_left_alone() -> None:
    plain = [with_step(make_trajectory(f"t{n}", [1], [float(n)]), 0, prompt_ids=[n + 1]) for n in range(2)]
    apart, empty = make_group(*plain), make_group(make_trajectory("e", [], [], reward=0.0))
    assert pool_equal_states([apart, empty, empty]) == [apart, empty, empty]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("config", [RTPO(), RTPO(baseline="leave_one_out"), RTPO(baseline="critic")])
def test_a_reward_or_value_that_is_not_finite_is_refused(config, bad) -> None:
    group = siblings([1.0, bad], k=1)
    with pytest.raises(InvalidRecord, match="NaN or infinite"):
        credits(config, group, values(group, 1, 0.0))
    if config.baseline == "critic":
        group = siblings([1.0, 0.0], k=1)
        with pytest.raises(InvalidRecord, match="NaN or infinite"):
            credits(config, group, values(group, 1, bad))


def test_a_missing_reward_is_not_0() -> None:
    group = siblings([1.0, 0.0], k=1)
    unknown: Trajectory = replace(group.trajectories[1], reward=None)
    with pytest.raises(InvalidRecord, match="not 0"):
        credits(RTPO(), replace(group, trajectories=(group.trajectories[0], unknown)))


@pytest.mark.parametrize(
    "wrong",
    [
        ["baseline=median"],
        ["baseline=critic", "scale=std"],
        ["baseline=critic", "zero_advantage=skip"],
        ["weight_bounds=[2.0, 3.0]"],
        ["weight_bounds=[-1.0, 3.0]"],
        ["weight_bounds=[0.5, .inf]"],
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        load_config(RTPO, None, wrong)


def test_identity_17_the_factor_by_exact_enumeration_of_all_sibling_sets() -> None:
    probabilities, outcomes = np.array([0.2, 0.3, 0.5]), np.array([1.0, 0.0, 0.4])
    truth = outcomes - probabilities @ outcomes
    for n in (1, 2, 3, 4):
        for baseline, factor in (("mean", (n - 1) / n), ("leave_one_out", 1.0 if n > 1 else 0.0)):
            expected = np.zeros(3)
            for rest in product(range(3), repeat=n - 1):
                weight = np.prod(probabilities[list(rest)])
                for action in range(3):
                    drawn = outcomes[[action, *rest]]
                    expected[action] += weight * sibling_advantages(drawn, baseline)[0]
            np.testing.assert_allclose(expected, factor * truth, atol=1e-12)


def test_identity_17_the_whole_group_s_estimator_has_the_factor_n_minus_1_over_n_too() -> None:
    np.testing.assert_array_equal(sibling_advantages([1, 0, 0]), group_advantages([1, 0, 0], scale="none"))
