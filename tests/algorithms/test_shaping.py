"""Weights of a teacher's gaps, and steps made equal, as laws. Numbers in names: identities of docs/papers.md."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.shaping import (
    MAX_GAP,
    equalised,
    gap,
    logprob_difference,
    mixed,
    mixing_at,
    raw_weights,
    shuffled,
)
from stepwell.errors import InvalidRecord

logprobs = st.floats(-60, 0)
gaps = st.lists(st.floats(-20, 20), min_size=1, max_size=8).map(np.array)
advantages = st.floats(-3, 3).filter(lambda a: abs(a) > 1e-3)
kinds = st.sampled_from(["sigmoid", "exp"])
shares = st.floats(0, 1)
alphas = st.floats(0, 0.99)


def parts_of(steps: list[list[float]]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Advantages and full spans of steps."""
    return [np.array(step) for step in steps], [np.ones(len(step), bool) for step in steps]


def weighed(gap_r: np.ndarray, advantage: float, kind: str, alpha: float, mixing: float) -> np.ndarray:
    return mixed(advantage, raw_weights(gap_r, advantage, kind).clip(1 - alpha, 1 + alpha), mixing)


@given(st.lists(st.tuples(logprobs, logprobs), max_size=8))
def test_a_gap_is_the_logprob_difference_within_20_nats(pairs) -> None:
    teacher, student = [t for t, _ in pairs], [s for _, s in pairs]
    assert logprob_difference(teacher, student).tolist() == [t - s for t, s in pairs]
    assert gap(teacher, student).tolist() == [min(max(t - s, -20.0), 20.0) for t, s in pairs]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_log_probability_that_is_not_finite_is_refused(bad) -> None:
    with pytest.raises(InvalidRecord, match="NaN or infinite"):
        gap([0.0, bad], [0.0, 0.0])
    with pytest.raises(InvalidRecord, match="NaN or infinite"):
        gap([0.0], [bad])


def test_scores_of_different_responses_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="same response"):
        gap([0.0, 1.0], [0.0])


@given(gaps, advantages)
def test_identity_12_the_sigmoid_weights_of_opposite_gaps_sum_to_2(gap_r, advantage) -> None:
    np.testing.assert_allclose(raw_weights(gap_r, advantage) + raw_weights(-gap_r, advantage), 2, rtol=1e-12)


@given(gaps, advantages, kinds)
def test_identity_12_an_opposite_gap_of_an_opposite_advantage_has_the_same_weight(gap_r, advantage, kind) -> None:
    assert raw_weights(-gap_r, -advantage, kind).tolist() == raw_weights(gap_r, advantage, kind).tolist()


def test_a_good_step_s_token_that_the_teacher_prefers_counts_more_and_a_bad_step_s_less() -> None:
    for kind in ("sigmoid", "exp"):
        assert raw_weights(np.array([1.0]), 2.0, kind)[0] > 1 > raw_weights(np.array([-1.0]), 2.0, kind)[0]
        assert raw_weights(np.array([1.0]), -2.0, kind)[0] < 1 < raw_weights(np.array([-1.0]), -2.0, kind)[0]
    assert raw_weights(np.array([math.log(3)]), 1.0)[0] == pytest.approx(1.5)
    assert raw_weights(np.array([math.log(3)]), 1.0, "exp")[0] == pytest.approx(3.0)


@given(gaps, advantages, kinds, alphas, shares)
def test_identity_11_the_sign_stays_and_the_size_is_within_1_plus_minus_lambda_alpha(
    gap_r, advantage, kind, alpha, mixing
) -> None:
    shaped = weighed(gap_r, advantage, kind, alpha, mixing)
    assert (np.sign(shaped) == np.sign(advantage)).all()
    assert (np.abs(shaped / advantage - 1) <= mixing * alpha + 1e-12).all()


@given(gaps, kinds, alphas, shares)
def test_identity_11_no_advantage_stays_none(gap_r, kind, alpha, mixing) -> None:
    assert not weighed(gap_r, 0.0, kind, alpha, mixing).any()


@given(gaps, advantages, kinds, alphas, shares)
def test_identity_10_no_gap_no_clip_or_no_mixing_leaves_the_advantage_exactly(
    gap_r, advantage, kind, alpha, mixing
) -> None:
    same = [advantage] * len(gap_r)
    assert weighed(gap_r * 0, advantage, kind, alpha, mixing).tolist() == same
    assert weighed(gap_r, advantage, kind, 0.0, mixing).tolist() == same
    assert weighed(gap_r, advantage, kind, alpha, 0.0).tolist() == same


def test_identity_10_mixing_goes_down_in_a_straight_line_and_is_0_from_the_last_update_on() -> None:
    assert [mixing_at(n, 0.2, 50) for n in (0, 25, 50, 51, 10_000)] == [0.2, 0.1, 0.0, 0.0, 0.0]
    assert mixing_at(10_000, 0.2, None) == 0.2


steps = st.lists(st.lists(st.floats(0.7, 1.3), min_size=1, max_size=6), min_size=1, max_size=5)


@given(steps, st.sampled_from([1.0, -1.0]))
def test_identity_13_after_normalisation_every_step_has_the_same_mean_and_the_published_one(values, sign) -> None:
    parts, spans = parts_of(values)
    got = equalised([sign * part for part in parts], spans, eps=0.0)
    target = np.mean([part.mean() for part in parts])
    np.testing.assert_allclose([np.abs(part).mean() for part in got], target, rtol=1e-12)
    assert all((np.sign(part) == sign).all() for part in got)


@given(st.lists(st.tuples(st.integers(1, 6), st.floats(0.7, 1.3)), min_size=2, max_size=5))
def test_identity_13_what_is_constant_within_steps_is_taken_back_whole(values) -> None:
    parts, spans = parts_of([[value] * count for count, value in values])
    got = np.concatenate(equalised(parts, spans, eps=0.0))
    np.testing.assert_allclose(got, np.mean([value for _, value in values]), rtol=1e-12)


@given(st.lists(st.floats(0.7, 1.3), min_size=1, max_size=6), st.sampled_from(["mean", "sum"]))
def test_identity_13_a_single_span_is_left_alone(values, by) -> None:
    parts, spans = parts_of([values])
    assert equalised(parts, spans, by)[0].tolist() == values


def test_the_published_epsilon_and_bounds_of_the_coefficients() -> None:
    parts, spans = parts_of([[1.0, 1.0], [3.0]])
    slow, fast = equalised(parts, spans)
    np.testing.assert_allclose(slow, 2 / (1 + 1e-6), rtol=1e-12)
    np.testing.assert_allclose(fast, 3 * 2 / (3 + 1e-6), rtol=1e-12)
    parts, spans = parts_of([[1.0], [99.0]])
    assert [part[0] for part in equalised(parts, spans)] == pytest.approx([2.0, 99 * 50 / 99])
    parts, spans = parts_of([[1.0], [1.0], [1.0], [99.0]])  # m̄ = 25.5: 1/4 of the large one would be needed
    assert equalised(parts, spans)[3][0] == 99 / 2


@given(steps)
def test_equal_sums_keep_the_trajectory_s_total_and_do_not_keep_equal_means(values) -> None:
    parts, spans = parts_of(values)
    got = equalised(parts, spans, "sum")
    np.testing.assert_allclose(sum(part.sum() for part in got), sum(part.sum() for part in parts), rtol=1e-9)
    np.testing.assert_allclose([part.sum() for part in got], np.mean([part.sum() for part in parts]), rtol=1e-9)


def test_equal_means_leave_a_long_step_more_in_total() -> None:
    parts, spans = parts_of([[1.0], [1.0] * 9])
    assert [part.sum() for part in equalised(parts, spans, eps=0.0)] == [1.0, 9.0]
    assert [part.sum() for part in equalised(parts, spans, "sum")] == pytest.approx([5.0, 5.0])


def test_tokens_outside_spans_are_not_scaled_and_steps_without_a_span_do_not_count() -> None:
    parts = [np.array([1.0, 1.0]), np.array([7.0, 3.0]), np.array([5.0]), np.empty(0)]
    spans = [np.array([True, True]), np.array([False, True]), np.array([False]), np.empty(0, bool)]
    for by, wanted in (("mean", [2.0, 2.0]), ("sum", [1.25, 2.5])):
        got = equalised(parts, spans, by, eps=0.0)
        assert got[0].tolist() == pytest.approx([wanted[0]] * 2)
        assert got[1].tolist() == pytest.approx([7.0, wanted[1]])
        assert got[2].tolist() == [5.0]
        assert got[3].shape == (0,)


@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), max_size=12), st.text(max_size=9))
def test_a_placebo_only_reorders_the_gaps_of_its_span_and_always_alike(tokens, seed) -> None:
    values, span = np.array([v for v, _ in tokens], float), np.array([inside for _, inside in tokens], bool)
    got = shuffled(values, span, seed)
    assert got.tolist() == shuffled(values, span, seed).tolist()
    assert sorted(got[span]) == sorted(values[span])
    assert got[~span].tolist() == values[~span].tolist()


def test_placebos_of_different_steps_differ() -> None:
    values, span = np.arange(20.0), np.ones(20, bool)
    assert shuffled(values, span, "step-a").tolist() != shuffled(values, span, "step-b").tolist()


@given(st.floats(-1e6, 1e6), kinds)
def test_a_weight_is_that_of_a_gap_of_at_most_20_nats(sum_of_gaps, kind) -> None:
    kept = min(max(sum_of_gaps, -MAX_GAP), MAX_GAP)
    with np.errstate(all="raise"):
        got = raw_weights(np.array([sum_of_gaps]), 1.0, kind)
    assert got.tolist() == raw_weights(np.array([kept]), 1.0, kind).tolist()
    assert np.exp(-MAX_GAP) <= got[0] <= np.exp(MAX_GAP)
