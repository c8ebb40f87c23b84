"""Ratios of every kind, against their formulas written out (docs/papers.md, identities 6 to 8)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stepwell.algorithms.objective import Objective
from stepwell.trainer.collate import token_weights
from stepwell.trainer.losses import policy_loss
from stepwell.trainer.ratios import gradient_scale, log_ratio
from tests.trainer.builders import make_sample

KINDS = ["token", "geo", "sqrt", "exact", "sequence"]
every_kind = pytest.mark.parametrize("kind", KINDS)
SAMPLES = [make_sample("a0", response=3), make_sample("a1", response=1), make_sample("b0", response=2)]
"""Three steps of two trajectories."""
ROWS = torch.tensor([0, 0, 0, 1, 2, 2])
TRAJECTORY = torch.tensor([0, 0, 0, 0, 1, 1])


def random(seed: int, spread: float = 0.1) -> Tensor:
    return spread * torch.from_numpy(np.random.default_rng(seed).normal(size=6))


def shared_part(z: Tensor, kind: str) -> Tensor | None:
    """What tokens beyond a step contribute, by the definition."""
    if kind == "sqrt":
        return z.mean()
    if kind == "sequence":
        return torch.stack([z[t == TRAJECTORY].mean() for t in TRAJECTORY])
    return None


def formula(z: Tensor, kind: str) -> Tensor:
    """log of the ratio of each token's unit."""
    mean = torch.stack([z[row == ROWS].mean() for row in ROWS])
    length = torch.stack([(row == ROWS).sum() for row in ROWS]).to(z.dtype)
    mu = z.detach().mean()
    values = {"token": z, "geo": mean, "exact": length * mean, "sqrt": mu + length.sqrt() * (mean - mu)}
    return values[kind] if kind in values else torch.stack([z[t == TRAJECTORY].mean() for t in TRAJECTORY])


def ratio_of(new: Tensor, old: Tensor, kind: str, scale: Tensor | None = None) -> Tensor:
    return log_ratio(new, old, ROWS, kind, scale_m=scale, shared=shared_part((new - old).detach(), kind))


def scales(kind: str, aggregation: str) -> tuple[Tensor, Tensor]:
    weights = token_weights(SAMPLES, aggregation)
    scale = gradient_scale(SAMPLES, weights, kind)
    return torch.from_numpy(np.concatenate(weights)).double(), torch.from_numpy(np.concatenate(scale)).double()


@every_kind
@pytest.mark.parametrize("seed", range(5))
def test_values_are_those_of_the_formula(kind: str, seed: int) -> None:
    new, old = random(seed), random(seed + 50)
    scale = scales(kind, "per_step")[1]
    torch.testing.assert_close(ratio_of(new, old, kind, scale), formula(new - old, kind))


@every_kind
@pytest.mark.parametrize("aggregation", ["per_step", "per_trajectory", "per_sequence", "per_token"])
def test_weighted_sums_have_the_gradient_of_the_units_ratio(kind: str, aggregation: str) -> None:
    """-Σ_units W·ρ·A, differentiated, for advantages that are the same all over a unit."""
    weights, scale = scales(kind, aggregation)
    advantage = torch.tensor([1.5, -0.5], dtype=torch.float64)[TRAJECTORY]
    new, old = random(1).requires_grad_(), random(2)
    (weights * ratio_of(new, old, kind, scale).exp() * advantage).sum().backward()
    leaf = new.detach().clone().requires_grad_()
    (weights * formula(leaf - old, kind).exp() * advantage).sum().backward()
    torch.testing.assert_close(new.grad, leaf.grad, rtol=1e-5, atol=1e-7)


@every_kind
def test_identity_6_at_the_policy_that_sampled_every_ratio_is_1(kind: str) -> None:
    new = random(0)
    assert ratio_of(new, new.clone(), kind, scales(kind, "per_step")[1]).tolist() == [0.0] * 6


@given(st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0)), min_size=1, max_size=6))
def test_identity_6_all_kinds_within_a_step_coincide_where_every_step_has_one_token(tokens) -> None:
    new, old = (torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True))
    rows = torch.arange(len(tokens))
    mean = (new - old).mean()
    for kind in ("geo", "sqrt", "exact"):
        torch.testing.assert_close(log_ratio(new, old, rows, kind, shared=mean), new - old)


def test_identity_24_the_sequence_ratio_of_one_token_is_its_token_ratio() -> None:
    new, old = random(8), random(9)
    rows = torch.arange(6)
    torch.testing.assert_close(
        log_ratio(new, old, rows, "sequence", scale_m=torch.ones(6), shared=new - old),
        log_ratio(new, old, rows, "token"),
    )


def test_identity_6_there_geo_pulls_one_lth_of_exact_and_one_root_of_sqrt() -> None:
    grads = {}
    for kind in ("geo", "sqrt", "exact"):
        new = random(0).requires_grad_()
        weights, scale = scales(kind, "per_step")
        (weights * ratio_of(new, new.detach().clone(), kind, scale).exp()).sum().backward()
        grads[kind] = new.grad
    length = torch.tensor([3, 3, 3, 1, 2, 2], dtype=torch.float64)
    torch.testing.assert_close(grads["geo"] * length.sqrt(), grads["sqrt"], rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(grads["geo"] * length, grads["exact"], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("c", [-0.3, 0.0, 0.2])
def test_identity_6_a_difference_that_is_the_same_everywhere_is_the_sqrt_ratio_whatever_the_length(c: float) -> None:
    old = random(3)
    torch.testing.assert_close(ratio_of(old + c, old, "sqrt"), torch.full((6,), c, dtype=torch.float64))


def test_identity_6_centred_at_0_the_sqrt_ratio_is_the_root_of_the_length_times_the_mean() -> None:
    new, old = random(4), random(5)
    got = log_ratio(new, old, ROWS, "sqrt", shared=torch.zeros((), dtype=torch.float64))
    mean = torch.stack([(new - old)[row == ROWS].mean() for row in ROWS])
    length = torch.tensor([3, 3, 3, 1, 2, 2], dtype=torch.float64)
    torch.testing.assert_close(got, length.sqrt() * mean)


def test_identity_7_the_token_form_is_the_sequence_form_for_advantages_that_are_constant_in_a_row() -> None:
    weights, scale = scales("geo", "per_step")
    new, old = random(6).requires_grad_(), random(7)
    advantage = torch.tensor([2.0, 2.0, 2.0, -1.0, 0.5, 0.5], dtype=torch.float64)
    loss = (weights * ratio_of(new, old, "geo", scale).exp() * advantage).sum()
    loss.backward()
    leaf = new.detach().clone().requires_grad_()
    rows = [leaf[row == ROWS] - old[row == ROWS] for row in range(3)]
    whole = sum(z.mean().exp() * a for z, a in zip(rows, (2.0, -1.0, 0.5), strict=True)) / 3
    whole.backward()
    torch.testing.assert_close(loss.detach(), whole.detach(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(new.grad, leaf.grad, rtol=1e-5, atol=1e-8)


def test_identity_8_at_the_policy_that_sampled_geo_and_token_have_one_gradient_and_sqrt_another() -> None:
    grads = {}
    for kind in ("token", "geo", "sqrt"):
        new = random(0).requires_grad_()
        weights, scale = scales(kind, "per_step")
        (weights * ratio_of(new, new.detach().clone(), kind, scale).exp()).sum().backward()
        grads[kind] = new.grad
    torch.testing.assert_close(grads["geo"], grads["token"], rtol=1e-5, atol=1e-8)
    assert not torch.allclose(grads["sqrt"], grads["token"], rtol=1e-2)


@pytest.mark.parametrize("kind", ["sqrt", "sequence"])
def test_a_ratio_that_spans_steps_is_not_made_up_from_one(kind: str) -> None:
    with pytest.raises(ValueError, match="share"):
        log_ratio(random(0), random(1), ROWS, kind, scale_m=torch.ones(6))


@every_kind
@pytest.mark.parametrize("gap", [50.0, -1e4, 1e30])
def test_ratios_that_would_overflow_stay_finite_and_so_do_their_gradients(kind: str, gap: float) -> None:
    new = torch.full((6,), gap, dtype=torch.float64, requires_grad=True)
    ratios = ratio_of(new, torch.zeros(6, dtype=torch.float64), kind, scales(kind, "per_step")[1]).exp()
    ratios.sum().backward()
    assert torch.isfinite(ratios).all()
    assert torch.isfinite(new.grad).all()
    assert float(ratios.detach().max()) <= math.exp(10) * (1 + 1e-9)


def test_tokens_without_weight_have_no_pull() -> None:
    weights = [np.zeros(3, np.float32), np.full(1, 0.5, np.float32), np.full(2, 0.25, np.float32)]
    assert gradient_scale(SAMPLES, weights, "exact")[0].tolist() == [0.0] * 3


def surrogate(at: Tensor, old: Tensor, advantage: Tensor, weights: Tensor, kind: str, mean: Tensor) -> Tensor:
    """PPO's clipped objective of the units' ratios, written out; what is a constant of the update is `mean`."""
    z = at - old
    of_row = torch.stack([z[row == ROWS].mean() for row in ROWS])
    length = torch.stack([(row == ROWS).sum() for row in ROWS]).to(z.dtype)
    logs = {
        "token": z,
        "geo": of_row,
        "exact": length * of_row,
        "sqrt": mean + length.sqrt() * (of_row - mean),
        "sequence": torch.stack([z[t == TRAJECTORY].mean() for t in TRAJECTORY]),
    }[kind]
    ratio = logs.exp()
    return -(weights * torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)).sum()


@every_kind
@pytest.mark.parametrize("aggregation", ["per_step", "per_trajectory", "per_sequence", "per_token"])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_the_difference_quotients_of_the_published_objective(
    kind: str, aggregation: str, seed: int
) -> None:
    weights, scale = scales(kind, aggregation)
    advantage = torch.tensor([1.5, -0.5], dtype=torch.float64)[TRAJECTORY]
    new, old = random(seed).requires_grad_(), random(seed + 30)
    ratios = log_ratio(new, old, ROWS, kind, scale_m=scale, shared=shared_part((new - old).detach(), kind))
    policy_loss(ratios, advantage, weights, Objective(ratio=kind, clip_low=0.1, clip_high=0.1))[0].backward()
    at, mean, step = new.detach(), (new - old).detach().mean(), 1e-6
    slopes = []
    for place in range(6):
        nudge = torch.zeros(6, dtype=torch.float64)
        nudge[place] = step
        up, down = (surrogate(at + s * nudge, old, advantage, weights, kind, mean) for s in (1, -1))
        slopes.append((up - down) / (2 * step))
    torch.testing.assert_close(new.grad, torch.stack(slopes), atol=1e-6, rtol=1e-4)
