"""The objectives, differentiated by hand: float64, so that a difference quotient can be trusted."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from stepwell.algorithms.objective import CLIP, Objective
from stepwell.trainer.losses import correction_weights, entropy, kl_estimate, policy_loss, value_loss
from stepwell.trainer.ratios import log_ratio

every_kind = pytest.mark.parametrize("kind", ["token", "geo"])
ROWS = torch.tensor([0, 0, 0, 1, 2, 2])
"""Three steps, of 3, 1 and 2 tokens."""
WEIGHTS = torch.tensor([0.1, 0.1, 0.1, 0.3, 0.2, 0.2], dtype=torch.float64)


def random(seed: int, spread: float = 0.1) -> Tensor:
    return spread * torch.from_numpy(np.random.default_rng(seed).normal(size=6))


def loss_of(new: Tensor, old: Tensor, advantages: Tensor, objective: Objective, rows: Tensor = ROWS) -> Tensor:
    return policy_loss(log_ratio(new, old, rows, objective.ratio), advantages, WEIGHTS[: len(new)], objective)[0]


def gradient(new: Tensor, *rest) -> Tensor:
    leaf = new.detach().clone().requires_grad_()
    loss_of(leaf, *rest).backward()
    assert leaf.grad is not None
    return leaf.grad


def difference_quotient(function, at: Tensor, step: float = 1e-6) -> Tensor:
    slopes = []
    for i in range(len(at)):
        nudge = torch.zeros_like(at)
        nudge[i] = step
        slopes.append((function(at + nudge) - function(at - nudge)) / (2 * step))
    return torch.stack(slopes)


def naive_loss(new: Tensor, old: Tensor, advantage_of_row: Tensor, objective: Objective) -> Tensor:
    """The published formulas, step by step and token by token."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(3):
        mine = [i for i in range(6) if int(ROWS[i]) == row]
        mean = sum(new[i] - old[i] for i in mine) / len(mine)
        for i in mine:
            ratio = torch.exp(mean if objective.ratio == "geo" else new[i] - old[i])
            bounded = ratio.clamp(1 - objective.clip[0], 1 + objective.clip[1])
            total = total - WEIGHTS[i] * torch.minimum(ratio * advantage_of_row[row], bounded * advantage_of_row[row])
    return total


@every_kind
@pytest.mark.parametrize("clip", [0.0, 0.02, 0.2, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_those_of_the_published_formula(kind: str, clip: float, seed: int) -> None:
    objective = Objective(ratio=kind, clip_low=clip, clip_high=1.5 * clip)
    new, old = random(seed), random(seed + 100)
    per_row = random(seed + 200, 2.0)[:3]
    got = loss_of(new, old, per_row[ROWS], objective)
    torch.testing.assert_close(got, naive_loss(new, old, per_row, objective))
    slopes = difference_quotient(lambda at: naive_loss(at, old, per_row, objective), new)
    torch.testing.assert_close(gradient(new, old, per_row[ROWS], objective), slopes, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_of_token_ratios_is_right_for_advantages_that_differ_within_a_step(seed: int) -> None:
    new, old, advantages, objective = random(seed), random(seed + 100), random(seed + 200, 2.0), Objective()
    slopes = difference_quotient(lambda at: loss_of(at, old, advantages, objective), new)
    torch.testing.assert_close(gradient(new, old, advantages, objective), slopes, atol=1e-7, rtol=1e-6)


@given(st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.floats(-2, 2)), min_size=1, max_size=6))
def test_both_ratios_are_the_same_where_every_step_has_one_token(tokens) -> None:
    new, old, advantages = (torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True))
    rows = torch.arange(len(tokens))
    token, geo = (Objective(ratio=kind, clip_low=0.2, clip_high=0.2) for kind in ("token", "geo"))
    torch.testing.assert_close(loss_of(new, old, advantages, token, rows), loss_of(new, old, advantages, geo, rows))
    torch.testing.assert_close(gradient(new, old, advantages, token, rows), gradient(new, old, advantages, geo, rows))


@every_kind
def test_while_the_policy_is_the_one_that_sampled_every_ratio_is_1(kind: str) -> None:
    new = random(0)
    assert log_ratio(new, new.clone(), ROWS, kind).tolist() == [0.0] * 6


def test_then_both_ratios_have_the_same_gradient_for_advantages_that_are_constant_in_steps() -> None:
    new, advantages = random(0), random(1, 2.0)[:3][ROWS]
    token = gradient(new, new.clone(), advantages, Objective(ratio="token"))
    geo = gradient(new, new.clone(), advantages, Objective(ratio="geo"))
    torch.testing.assert_close(token, -(WEIGHTS * advantages))
    torch.testing.assert_close(geo, token)


def test_geo_values_are_the_mean_of_the_steps_log_ratios_and_one_for_all_its_tokens() -> None:
    new = torch.tensor([0.3, 0.0, -0.6, 0.2, 1.0, 0.0], dtype=torch.float64)
    got = log_ratio(new, torch.zeros(6, dtype=torch.float64), ROWS, "geo")
    torch.testing.assert_close(got, torch.tensor([-0.1, -0.1, -0.1, 0.2, 0.5, 0.5], dtype=torch.float64))


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [(1.5, 1.0, True), (1.5, -1.0, False), (0.5, 1.0, False), (0.5, -1.0, True), (1.1, 1.0, False), (0.9, -1.0, False)],
)
def test_a_token_is_clipped_where_going_further_would_pay_and_then_has_no_gradient(
    ratio: float, advantage: float, clipped: bool
) -> None:
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    logs = log_ratio(new, torch.zeros(1), torch.tensor([0]), "token")
    loss, mask = policy_loss(logs, torch.tensor([advantage]), torch.ones(1), Objective())
    loss.backward()
    assert mask.tolist() == [clipped]
    bounded = {True: 1.2 if advantage > 0 else 0.8, False: ratio}[clipped]
    assert loss.item() == pytest.approx(-bounded * advantage)
    assert new.grad.tolist() == pytest.approx([0.0 if clipped else -ratio * advantage])


def test_low_and_high_clip_are_separate() -> None:
    logs = torch.tensor([0.5, -0.5]).log1p()
    loss, mask = policy_loss(logs, torch.tensor([1.0, -1.0]), torch.ones(2), Objective(clip_low=0.1, clip_high=0.3))
    assert mask.all()
    assert loss.item() == pytest.approx(-1.3 + 0.9)


@every_kind
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("gap", [50.0, 1e4, 1e30])
def test_ratios_that_would_overflow_stay_finite_and_so_do_their_gradients(kind: str, sign: float, gap: float) -> None:
    objective = Objective(ratio=kind)
    for advantage in (1.0, -1.0):
        new = torch.tensor([sign * gap, 0.0], requires_grad=True)
        loss = loss_of(new, torch.zeros(2), torch.full((2,), advantage), objective, torch.tensor([0, 0]))
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(new.grad).all()


@pytest.mark.parametrize("clip", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_the_value_loss_and_its_gradient_are_those_of_the_published_formula(clip: float, seed: int) -> None:
    values, targets, old = random(seed, 1.0), random(seed + 100, 1.0), random(seed + 200, 1.0)

    def naive(at: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for v, target, before, weight in zip(at, targets, old, WEIGHTS, strict=True):
            errors = [(v - target) ** 2]
            if clip:
                errors.append((v.clamp(before - clip, before + clip) - target) ** 2)
            total = total + 0.5 * weight * max(errors)
        return total

    leaf = values.clone().requires_grad_()
    loss = value_loss(leaf, targets, old, WEIGHTS, clip)
    loss.backward()
    torch.testing.assert_close(loss.detach(), naive(values))
    torch.testing.assert_close(leaf.grad, difference_quotient(naive, values), atol=1e-7, rtol=1e-6)


def test_a_value_that_moved_as_far_as_it_may_towards_its_target_is_pulled_no_further() -> None:
    value = torch.tensor([0.8], requires_grad=True)
    value_loss(value, torch.tensor([3.0]), torch.tensor([0.0]), torch.ones(1), 0.5).backward()
    assert value.grad.tolist() == [0.0]


def test_no_values_cost_nothing() -> None:
    none = torch.zeros(0)
    assert value_loss(none, none, none, none, 0.5).item() == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_a_dual_clip_bounds_the_loss_of_what_was_bad_and_became_likely(seed: int) -> None:
    objective = Objective(dual_clip=2.0)
    new, old = random(seed, 2.0), random(seed + 100, 2.0)
    advantages = random(seed + 200, 2.0)
    ratio = (new - old).exp()
    least = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    expected = torch.where(advantages < 0, torch.maximum(least, 2.0 * advantages), least)
    torch.testing.assert_close(loss_of(new, old, advantages, objective), -(WEIGHTS * expected).sum())
    slopes = difference_quotient(lambda at: loss_of(at, old, advantages, objective), new)
    torch.testing.assert_close(gradient(new, old, advantages, objective), slopes, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_cispo_weighs_the_gradient_of_the_log_probability_by_the_clipped_ratio(seed: int) -> None:
    objective = Objective(surrogate="cispo", clip_low=0.3, clip_high=0.1)
    new, old, advantages = random(seed, 1.0), random(seed + 100, 1.0), random(seed + 200, 2.0)
    weight = (new - old).exp().clamp(0.7, 1.1)
    torch.testing.assert_close(gradient(new, old, advantages, objective), -(WEIGHTS * weight * advantages))


@pytest.mark.parametrize(
    ("kind", "formula"), [("k1", lambda x: -x), ("k2", lambda x: x**2 / 2), ("k3", lambda x: math.exp(x) - x - 1)]
)
@pytest.mark.parametrize("x", [-2.0, -0.1, 0.0, 0.3, 1.5])
def test_estimates_of_the_divergence_are_schulmans(kind: str, formula, x: float) -> None:
    got = kl_estimate(torch.tensor([-3.0], dtype=torch.float64), torch.tensor([x - 3.0], dtype=torch.float64), kind)
    assert got.item() == pytest.approx(formula(x))


@given(st.lists(st.floats(0.2, 1.0), min_size=2, max_size=6), st.lists(st.floats(0.2, 1.0), min_size=6, max_size=6))
def test_k1_and_k3_have_the_divergence_as_their_mean_and_only_k1_is_ever_negative(first, second) -> None:
    policy, reference = (torch.tensor(w[: len(first)], dtype=torch.float64) for w in (first, second))
    policy, reference = policy / policy.sum(), reference / reference.sum()
    exact = (policy * (policy / reference).log()).sum()
    for kind in ("k1", "k3"):
        estimate = kl_estimate(policy.log(), reference.log(), kind)
        torch.testing.assert_close((policy * estimate).sum(), exact, atol=1e-9, rtol=1e-7)
        assert kind == "k1" or (estimate >= -1e-12).all()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_no_token_diverges_by_more_than_the_bound(kind: str) -> None:
    new = torch.tensor([-30.0], dtype=torch.float64, requires_grad=True)
    found = kl_estimate(new, torch.tensor([0.0], dtype=torch.float64), kind)
    found.sum().backward()
    assert abs(found.item()) <= 20
    assert torch.isfinite(new.grad).all()


def test_entropy_is_that_of_the_distribution_and_largest_where_all_are_equal() -> None:
    logp = torch.tensor([[0.0, 0.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.0]], dtype=torch.float64).log_softmax(-1)
    uniform, peaked = entropy(logp).tolist()
    assert uniform == pytest.approx(math.log(4))
    p = logp[1].exp()
    assert peaked == pytest.approx(float(-(p * p.log()).sum()))


CORRECTED = torch.tensor([0.5, -3.0, 0.1, 0.0, 2.0, -1.0], dtype=torch.float64)
"""old - rollout of each token."""


def test_truncated_importance_weights_are_the_ratio_up_to_the_cap() -> None:
    objective = Objective(old_logprobs="trainer", correction="truncate", correction_cap=2.0)
    got = correction_weights(CORRECTED, torch.zeros(6, dtype=torch.float64), ROWS, objective)
    torch.testing.assert_close(got, CORRECTED.exp().clamp(max=2.0))


def test_masked_importance_weights_leave_out_what_lies_outside() -> None:
    objective = Objective(old_logprobs="trainer", correction="mask", correction_cap=2.0)
    got = correction_weights(CORRECTED, torch.zeros(6, dtype=torch.float64), ROWS, objective)
    kept = torch.tensor([True, False, True, True, False, False])
    torch.testing.assert_close(got, torch.where(kept, CORRECTED.exp(), torch.zeros(6, dtype=torch.float64)))


def test_at_the_level_of_steps_the_weight_is_the_product_over_the_step() -> None:
    objective = Objective(old_logprobs="trainer", correction="truncate", correction_level="step", correction_cap=100.0)
    got = correction_weights(CORRECTED, torch.zeros(6, dtype=torch.float64), ROWS, objective)
    torch.testing.assert_close(got, torch.tensor([-2.4, -2.4, -2.4, 0.0, 1.0, 1.0], dtype=torch.float64).exp())


def test_without_a_correction_every_token_weighs_1() -> None:
    assert correction_weights(CORRECTED, CORRECTED * 0, ROWS, Objective()).tolist() == [1.0] * 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"correction": "truncate"}, "old_logprobs"),
        ({"surrogate": "cispo", "dual_clip": 3.0}, "dual_clip"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"clip_low": 1.5}, "clip_low"),
        ({"correction_cap": 0.5, "old_logprobs": "trainer"}, "correction_cap"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Objective(**settings)


@pytest.mark.parametrize("kind", ["token", "geo", "sqrt", "exact", "sequence"])
def test_the_clip_range_follows_the_kind_of_ratio_unless_it_is_set(kind: str) -> None:
    assert Objective(ratio=kind).clip == CLIP[kind]
    assert Objective(ratio=kind, clip_low=0.1).clip == (0.1, CLIP[kind][1])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_the_divergence_are_its_difference_quotients(kind: str, seed: int) -> None:
    new, reference = random(seed, 1.0), random(seed + 10, 1.0)
    leaf = new.clone().requires_grad_()
    (WEIGHTS * kl_estimate(leaf, reference, kind)).sum().backward()
    slopes = difference_quotient(lambda at: (WEIGHTS * kl_estimate(at, reference, kind)).sum(), new)
    torch.testing.assert_close(leaf.grad, slopes, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_the_entropy_is_its_difference_quotient(seed: int) -> None:
    logits = random(seed, 1.0)
    leaf = logits.clone().requires_grad_()
    entropy(leaf[None].log_softmax(-1)).sum().backward()
    slopes = difference_quotient(lambda at: entropy(at[None].log_softmax(-1)).sum(), logits)
    torch.testing.assert_close(leaf.grad, slopes, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_cispo_is_the_difference_quotient_with_its_weights_held(seed: int) -> None:
    objective = Objective(surrogate="cispo", clip_low=0.3, clip_high=0.1)
    new, old, advantages = random(seed, 1.0), random(seed + 100, 1.0), random(seed + 200, 2.0)
    held = (new - old).exp().clamp(0.7, 1.1)
    slopes = difference_quotient(lambda at: -(WEIGHTS * held * advantages * at).sum(), new)
    torch.testing.assert_close(gradient(new, old, advantages, objective), slopes, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("gap", [9.0, 11.0])
def test_no_token_is_left_without_a_gradient_by_the_bound_of_its_ratio(gap: float) -> None:
    for objective, advantage, expected in (
        (Objective(surrogate="cispo"), 1.0, -1.2),
        (Objective(), -1.0, math.exp(min(gap, 10.0))),
    ):
        new = torch.tensor([gap], dtype=torch.float64, requires_grad=True)
        logs = log_ratio(new, torch.zeros(1, dtype=torch.float64), torch.tensor([0]), objective.ratio)
        loss = policy_loss(logs, torch.tensor([advantage]).double(), torch.ones(1).double(), objective)[0]
        loss.backward()
        assert new.grad.item() == pytest.approx(expected)
