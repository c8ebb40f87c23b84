"""StepOPSD on hand-made groups. Numbers in names: identities of docs/papers.md."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.base import Inputs
from stepwell.algorithms.grpo import GRPO
from stepwell.algorithms.hindsight import Hindsight
from stepwell.algorithms.stepopsd import StepOPSD
from stepwell.config import load_config
from stepwell.errors import ConfigError, InvalidRecord
from stepwell.types import Group, Ids
from tests.algorithms.builders import make_group, make_step, make_trajectory

LENGTHS = {"bad": [3, 5, 1], "good": [2, 4]}


def tokenize(text: str) -> Ids:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def mixed_group() -> Group:
    bad = make_trajectory("bad", LENGTHS["bad"], [0.0, 0.0, 0.0])
    return make_group(bad, make_trajectory("good", LENGTHS["good"], [0.0, 1.0]))


def scored(group: Group, seed: int = 0, updates: int = 0, spread: float = 0.3) -> Inputs:
    """What teacher and student say of every step: they differ by noise of that spread."""
    random = np.random.default_rng(seed)
    steps = [step for trajectory in group.trajectories for step in trajectory.steps]
    student = {step.id: random.normal(-1, 0.2, len(step.response_ids)).astype(np.float32) for step in steps}
    noise = {step.id: random.normal(0, spread, len(step.response_ids)) for step in steps}
    teacher = {name: (own + noise[name]).astype(np.float32) for name, own in student.items()}
    return Inputs(logprobs=student, teacher_logprobs=teacher, updates=updates)


def advantages(config: StepOPSD | GRPO, group: Group, inputs: Inputs | None = None) -> dict[str, np.ndarray]:
    credits = config.build().assign(group, scored(group) if inputs is None else inputs)
    return {credit.step_id: credit.advantages.astype(np.float64) for credit in credits}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray], rtol: float = 0.0) -> bool:
    return one.keys() == other.keys() and all(np.allclose(one[name], other[name], rtol=rtol, atol=0) for name in one)


def spread(values: dict[str, np.ndarray], trajectory: str) -> float:
    """How much the mean |advantage| of a trajectory's steps differs between them."""
    return float(np.ptp([np.abs(part).mean() for name, part in values.items() if name.startswith(trajectory)]))


@pytest.mark.parametrize("normalize", ["equal_step_mean_abs", "none"])
def test_identity_10_without_mixing_it_is_grpo_exactly_and_asks_for_no_teacher(normalize) -> None:
    group, config = mixed_group(), StepOPSD(mixing=0.0, normalize=normalize)
    assert same(advantages(config, group, Inputs()), advantages(GRPO(), group))
    assert config.build().teacher is None
    assert not config.build().needs_logprobs


@pytest.mark.parametrize("updates", [50, 51, 1000])
def test_identity_10_from_the_last_update_of_its_schedule_on_it_is_grpo_exactly(updates) -> None:
    group = mixed_group()
    assert same(advantages(StepOPSD(), group, Inputs(updates=updates)), advantages(GRPO(), group))
    assert not same(advantages(StepOPSD(), group, scored(group, updates=49)), advantages(GRPO(), group))


def test_identity_10_a_clip_of_0_is_grpo_exactly_without_normalisation_and_to_its_epsilon_with() -> None:
    group, plain = mixed_group(), advantages(GRPO(), mixed_group())
    assert same(advantages(StepOPSD(clip=0.0, normalize="none"), group), plain)
    assert same(advantages(StepOPSD(clip=0.0), group), plain, rtol=3e-6)


def test_identity_10_a_teacher_that_agrees_is_grpo() -> None:
    group = mixed_group()
    agreeing = scored(group, spread=0.0)
    assert same(advantages(StepOPSD(normalize="none"), group, agreeing), advantages(GRPO(), group))
    assert same(advantages(StepOPSD(), group, agreeing), advantages(GRPO(), group), rtol=3e-6)


def test_identity_10_the_current_policy_without_a_hint_is_grpo_exactly_and_scores_nothing() -> None:
    group, config = mixed_group(), StepOPSD(refresh_every=0, hindsight=Hindsight(told="nothing"))
    assert config.build().teacher.prompts(group, tokenize) == {}
    assert same(advantages(config, group, Inputs()), advantages(GRPO(), group))


def test_it_is_not_grpo_where_none_of_this_holds() -> None:
    group = mixed_group()
    for normalize in ("equal_step_mean_abs", "equal_step_sum_abs", "none"):
        assert not same(advantages(StepOPSD(normalize=normalize), group), advantages(GRPO(), group), rtol=1e-4)


@given(st.floats(0, 1), st.floats(0, 0.99), st.integers(0, 60), st.integers(0, 5), st.sampled_from(["sigmoid", "exp"]))
def test_identity_11_without_normalisation_the_sign_stays_and_the_size_is_bounded(
    mixing, clip, updates, seed, weight
) -> None:
    group = mixed_group()
    config = StepOPSD(mixing=mixing, clip=clip, weight=weight, normalize="none")
    got, plain = advantages(config, group, scored(group, seed, updates, 2.0)), advantages(GRPO(), group)
    bound = mixing * max(0, 1 - updates / 50) * clip
    for name, part in got.items():
        ratio = part / plain[name]
        assert (ratio > 0).all()
        assert (np.abs(ratio - 1) <= bound + 1e-6).all()


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_identity_11_a_group_that_is_all_correct_or_all_wrong_learns_nothing_and_is_not_scored(reward) -> None:
    group = make_group(*(make_trajectory(f"t{n}", [2, 3], [0.0, reward]) for n in range(3)))
    assert StepOPSD().build().teacher.prompts(group, tokenize) == {}
    assert all(not part.any() for part in advantages(StepOPSD(), group, Inputs()).values())


def test_identity_13_a_trajectory_of_one_step_is_the_same_with_and_without_normalisation() -> None:
    group = make_group(make_trajectory("bad", [6], [0.0]), make_trajectory("good", [4], [1.0]))
    assert same(advantages(StepOPSD(), group), advantages(StepOPSD(normalize="none"), group))


def test_identity_13_the_published_normalisation_leaves_no_credit_between_steps_and_switched_off_it_does() -> None:
    group = mixed_group()
    for trajectory in ("bad", "good"):
        assert spread(advantages(StepOPSD(mixing=1.0), group), trajectory) < 1e-5
        assert spread(advantages(StepOPSD(mixing=1.0, normalize="none"), group), trajectory) > 1e-3


def test_identity_13_gaps_that_are_constant_within_steps_have_no_effect_under_it() -> None:
    group = mixed_group()
    by_step = StepOPSD(mixing=1.0, clip=0.5, gap="step")
    constant, free = advantages(by_step, group), advantages(by_step.model_copy(update={"normalize": "none"}), group)
    for trajectory, lengths in LENGTHS.items():
        names = [f"{trajectory}-{index}" for index in range(len(lengths))]
        np.testing.assert_allclose(np.concatenate([constant[n] for n in names]), constant[names[0]][0], rtol=1e-5)
        assert all(np.ptp(free[name]) == 0 for name in names)
        assert len({free[name][0] for name in names}) == len(names)


def test_equal_sums_give_each_step_the_same_total_and_the_trajectory_what_it_had() -> None:
    group = mixed_group()
    free = advantages(StepOPSD(normalize="none"), group)
    got = advantages(StepOPSD(normalize="equal_step_sum_abs"), group)
    for trajectory, lengths in LENGTHS.items():
        sums = [got[f"{trajectory}-{index}"].sum() for index in range(len(lengths))]
        before = [free[f"{trajectory}-{index}"].sum() for index in range(len(lengths))]
        np.testing.assert_allclose(sums, np.mean(before), rtol=1e-6)


def test_the_placebo_has_the_weights_of_the_real_thing_on_other_tokens_of_the_same_step() -> None:
    group = mixed_group()
    real = advantages(StepOPSD(normalize="none"), group)
    placebo = advantages(StepOPSD(normalize="none", gap="shuffled"), group)
    assert same(placebo, advantages(StepOPSD(normalize="none", gap="shuffled"), group))
    assert not same(placebo, real)
    for name, part in placebo.items():
        np.testing.assert_allclose(np.sort(part), np.sort(real[name]))


def test_a_worked_example() -> None:
    group = make_group(make_trajectory("bad", [1], [0.0]), make_trajectory("good", [2], [1.0]))
    gaps = {"bad-0": [math.log(3)], "good-0": [math.log(3), -0.01]}
    inputs = Inputs(
        logprobs={name: np.zeros(len(gap), np.float32) for name, gap in gaps.items()},
        teacher_logprobs={name: np.array(gap, np.float32) for name, gap in gaps.items()},
        updates=25,
    )
    got = advantages(StepOPSD(mixing=0.4, clip=0.2, scale="none"), group, inputs)
    # A = ±1/2; λ = 0.4 half-way to 0 = 0.2; raw weights 2σ(ln 3) = 1.5, 2σ(-ln 3) = 0.5, 2σ(-0.01) = 0.995
    assert got["bad-0"].tolist() == pytest.approx([-0.5 * (0.8 + 0.2 * 0.8)])
    assert got["good-0"].tolist() == pytest.approx([0.5 * (0.8 + 0.2 * 1.2), 0.5 * (0.8 + 0.2 * 0.995)], rel=1e-5)


def test_the_student_s_score_is_recomputed_or_as_sampled() -> None:
    group = mixed_group()
    inputs = scored(group)
    as_sampled = {step.id: step.logprobs for t in group.trajectories for step in t.steps}
    config = StepOPSD(student="rollout")
    assert not config.build().needs_logprobs
    wanted = advantages(StepOPSD(), group, replace(inputs, logprobs=as_sampled))
    assert same(advantages(config, group, replace(inputs, logprobs={})), wanted)


def test_identity_14_a_teacher_without_a_hint_reads_what_the_policy_read_so_their_gap_is_that_of_their_weights() -> (
    None
):
    group = mixed_group()
    teacher = StepOPSD(hindsight=Hindsight(told="nothing")).build().teacher
    assert teacher.refresh_every == 10
    prompts = teacher.prompts(group, tokenize)
    for step in (step for trajectory in group.trajectories for step in trajectory.steps):
        assert prompts[step.id].tolist() == step.prompt_ids.tolist()


def test_a_stale_teacher_scores_correct_trajectories_too_and_a_current_one_only_what_has_a_hint() -> None:
    group = mixed_group()
    assert list(StepOPSD().build().teacher.prompts(group, tokenize)) == ["bad-0", "bad-1", "bad-2", "good-0", "good-1"]
    assert list(StepOPSD(refresh_every=0).build().teacher.prompts(group, tokenize)) == ["bad-0", "bad-1", "bad-2"]


@pytest.mark.parametrize("missing", ["logprobs", "teacher_logprobs"])
def test_a_score_that_is_missing_is_an_error_and_not_a_gap_of_0(missing) -> None:
    group = mixed_group()
    inputs = scored(group)
    kept = {name: score for name, score in getattr(inputs, missing).items() if name != "bad-1"}
    with pytest.raises(InvalidRecord, match="bad-1: a missing gap is not 0"):
        advantages(StepOPSD(), group, replace(inputs, **{missing: kept}))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("who", ["logprobs", "teacher_logprobs"])
def test_a_score_that_is_not_finite_is_refused(who, bad) -> None:
    group = mixed_group()
    inputs = scored(group)
    broken = {**getattr(inputs, who), "bad-0": np.array([0, bad, 0], np.float32)}
    with pytest.raises(InvalidRecord, match="NaN or infinite"):
        advantages(StepOPSD(), group, replace(inputs, **{who: broken}))


def test_steps_that_cannot_be_trained_on_have_no_part_in_the_normalisation() -> None:
    group = mixed_group()
    bad = group.trajectories[0]
    aborted = (*bad.steps, make_step("bad", 3, 7, finish_reason="abort"))
    longer = replace(bad, steps=aborted, step_rewards=(0.0,) * 4)
    got = advantages(StepOPSD(), make_group(longer, group.trajectories[1]), scored(group))
    assert len(set(got.pop("bad-3"))) == 1
    assert same(got, advantages(StepOPSD(), group))


@pytest.mark.parametrize(
    "wrong", ["clip=1.0", "clip=1.5", "clip=-0.1", "mixing=1.1", "decay_updates=0", "refresh_every=-1", "weight=linear"]
)
def test_settings_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        load_config(StepOPSD, None, [wrong])


def actions_of(group: Group) -> dict[str, np.ndarray]:
    """All but the first token of each response."""
    return {s.id: np.arange(len(s.response_ids)) > 0 for t in group.trajectories for s in t.steps}


def test_only_tokens_of_the_span_are_re_weighed_and_made_equal() -> None:
    group, plain = mixed_group(), advantages(GRPO(), mixed_group())
    inputs = replace(scored(group), actions=actions_of(group))
    for config in (StepOPSD(span="action_only"), StepOPSD(span="action_only", normalize="none")):
        assert config.build().needs_actions
        got = advantages(config, group, inputs)
        for name, part in got.items():
            assert part[0] == plain[name][0]
            assert (part[1:] != plain[name][1:]).all()
    means = [np.abs(advantages(StepOPSD(span="action_only"), group, inputs)[f"bad-{k}"][1:]).mean() for k in (0, 1)]
    assert means[0] == pytest.approx(means[1], rel=1e-5)


def test_with_answer_only_all_but_the_last_step_are_as_in_grpo() -> None:
    group, plain = mixed_group(), advantages(GRPO(), mixed_group())
    inputs = replace(scored(group), actions=actions_of(group))
    got = advantages(StepOPSD(span="answer_only"), group, inputs)
    changed = {name for name in got if not np.array_equal(got[name], plain[name])}
    assert changed == {"good-1"}, "the last step of the other has no token beyond its first"


@pytest.mark.parametrize("actions", [{}, {"bad-0": np.ones(9, bool)}])
def test_an_action_that_nobody_marked_or_of_another_length_is_an_error(actions) -> None:
    group = mixed_group()
    with pytest.raises(InvalidRecord, match="which tokens of step bad-0"):
        advantages(StepOPSD(span="action_only"), group, replace(scored(group), actions=actions))


def test_a_full_action_needs_no_marks() -> None:
    assert not StepOPSD().build().needs_actions


def test_once_mixing_is_over_the_teacher_need_not_score() -> None:
    assert StepOPSD(decay_updates=7).build().teacher.until == 7
    assert StepOPSD(decay_updates=None).build().teacher.until is None


def test_diagnostics_of_a_worked_example() -> None:
    group = make_group(make_trajectory("bad", [2], [0.0]), make_trajectory("good", [2], [1.0]))
    inputs = Inputs(
        logprobs={"bad-0": np.zeros(2, np.float32), "good-0": np.zeros(2, np.float32)},
        teacher_logprobs={"bad-0": np.array([1, -0.01], np.float32), "good-0": np.array([3, 5], np.float32)},
        updates=25,
    )
    config = StepOPSD(hindsight=Hindsight(peer_tokens=1))
    found = config.build().diagnose(group, inputs)
    assert found == {
        "mixing": pytest.approx(0.1),
        "hint_rate": 0.5,
        "hint_truncated_rate": 1.0,
        "teacher_gap_mean": pytest.approx((0.495 + 4) / 2),
        "teacher_gap_variance": pytest.approx((0.505**2 + 1) / 2),
        "weight_clipped_rate": 0.75,
    }


def test_diagnostics_of_a_group_that_nobody_scored_have_no_gaps() -> None:
    group = make_group(make_trajectory("a", [2], [1.0]), make_trajectory("b", [2], [1.0]))
    assert StepOPSD().build().diagnose(group, Inputs()) == {"mixing": 0.2, "hint_rate": 0.0}


def test_the_rate_of_clipped_weights_is_that_of_the_span_and_of_the_gaps_that_are_used() -> None:
    group = make_group(make_trajectory("bad", [3], [0.0]), make_trajectory("good", [3], [1.0]))
    zeros = {"bad-0": np.zeros(3, np.float32), "good-0": np.zeros(3, np.float32)}
    gaps = {"bad-0": np.array([9, 0.06, 0.06], np.float32), "good-0": np.array([9, 0.0, 0.0], np.float32)}
    inputs = Inputs(logprobs=zeros, teacher_logprobs=gaps, actions=actions_of(group))

    def found(**settings) -> dict[str, float]:
        return dict(StepOPSD(span="action_only", **settings).build().diagnose(group, inputs))

    # 2σ(0.06) = 1.03 is within 5 %, 2σ(0.12) = 1.06 is not; the first tokens are no actions
    assert found()["weight_clipped_rate"] == 0.0
    assert found(gap="step")["weight_clipped_rate"] == 0.5
    assert found()["teacher_gap_mean"] == pytest.approx(0.03)


def test_a_trajectory_without_an_advantage_has_gaps_and_no_weights() -> None:
    group = make_group(*(make_trajectory(name, [1], [reward]) for name, reward in (("a", 0), ("b", 0.5), ("c", 1))))
    said = {f"{name}-0": np.full(1, gap, np.float32) for name, gap in (("a", -1), ("b", 0.0), ("c", 1))}
    inputs = Inputs(logprobs={name: gap * 0 for name, gap in said.items()}, teacher_logprobs=said)
    assert StepOPSD().build().diagnose(group, inputs)["weight_clipped_rate"] == 1.0


@pytest.mark.parametrize("weight", ["sigmoid", "exp"])
def test_the_sum_of_a_long_steps_gaps_does_not_overflow(weight) -> None:
    group = make_group(make_trajectory("bad", [99], [0.0]), make_trajectory("good", [99], [1.0]))
    said = {name: np.full(99, gap, np.float32) for name, gap in (("bad-0", -20), ("good-0", 20))}
    inputs = Inputs(logprobs={name: gap * 0 for name, gap in said.items()}, teacher_logprobs=said)
    with np.errstate(over="raise"):
        got = advantages(StepOPSD(gap="step", weight=weight, scale="none"), group, inputs)
    np.testing.assert_allclose(got["good-0"], 0.5 * (1 + 0.2 * 0.05), rtol=1e-5)
