"""The objectives, as functions of tensors. Where each formula comes from: docs/papers.md.

Shape letters: M response tokens, K supervised values, W vocabulary.
"""

import torch
from torch import Tensor

from stepwell.algorithms.objective import KL, Objective

MAX_KL = 10.0
"""Nats that one token's estimate of the divergence may have: k3 grows exponentially."""


def policy_loss(
    log_ratio_m: Tensor, advantages_m: Tensor, weights_m: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """The surrogate, weighted: (loss to minimise, scalar; mask [M] of the tokens whose ratio was clipped).

    `clip`: -Σ w·min(ρA, clip(ρ, 1-ε_low, 1+ε_high)·A), Schulman et al. 2017 (arXiv 1707.06347) eq. 7; with
    `dual_clip` c, max(that, c·A) where A < 0, Ye et al. 2020 (arXiv 1912.09729) eq. 5.
    `cispo`: -Σ w·sg[clip(ρ)]·A·log π, MiniMax 2025 (arXiv 2506.13585) eq. 4.
    """
    low, high = objective.clip
    ratio = log_ratio_m.exp()
    clipped = ratio.clamp(1 - low, 1 + high)
    if objective.surrogate == "cispo":
        weighed = clipped.detach() * advantages_m * log_ratio_m  # of log π, the ratio's gradient is all that counts
        return -(weights_m * weighed).sum(), clipped.detach() != ratio.detach()
    free, bound = ratio * advantages_m, clipped * advantages_m
    least = torch.minimum(free, bound)
    flat = bound < free
    if objective.dual_clip is not None:
        floor = objective.dual_clip * advantages_m
        beyond = (advantages_m < 0) & (least < floor)
        least, flat = torch.where(beyond, floor, least), flat | beyond
    return -(weights_m * least).sum(), flat


def kl_estimate(new_m: Tensor, reference_m: Tensor, kind: KL) -> Tensor:
    """Each token's estimate of KL(policy ‖ reference), [M], nats (Schulman 2020, "Approximating KL divergence").

    With x = log π_ref - log π, for tokens sampled by the policy: `k1` -x (unbiased, may be negative), `k2` x²/2, `k3`
    exp(x) - x - 1 (unbiased, never negative). k2 and k3 are at most
    10 nats per token, k1 at most 20 in size.
    """
    x = (reference_m - new_m).clamp(-20, 20)
    if kind == "k1":
        return -x
    estimate = 0.5 * x.square() if kind == "k2" else torch.expm1(x) - x
    return estimate.clamp(max=MAX_KL)


def entropy(logp_mw: Tensor) -> Tensor:
    """Entropy of the distribution at each token, [M], nats, from all log-probabilities [M, W]."""
    return -(logp_mw.exp() * logp_mw).sum(-1)


def correction_weights(old_m: Tensor, rollout_m: Tensor, row_m: Tensor, objective: Objective) -> Tensor:
    """Importance weights [M] from the policy that sampled to the ratio's denominator; without gradient.

    exp(old - rollout), of the token or multiplied over its step: truncated at the cap (TIS, Yao et al. 2025), or 0
    outside [1/cap, cap] (MIS, as IcePop does).
    """
    z = (old_m - rollout_m).detach()
    if objective.correction == "none":
        return torch.ones_like(z)
    if objective.correction_level == "step":
        rows = int(row_m.max()) + 1 if len(row_m) else 0
        z = torch.zeros(rows, dtype=z.dtype).index_add(0, row_m, z)[row_m]
    weights = z.clamp(-20, 20).exp()
    cap = objective.correction_cap
    if objective.correction == "truncate":
        return weights.clamp(max=cap)
    return torch.where((weights >= 1 / cap) & (weights <= cap), weights, torch.zeros_like(weights))


def value_loss(values_k: Tensor, targets_k: Tensor, old_k: Tensor, weights_k: Tensor, clip: float) -> Tensor:
    """Half the squared error, weighted; with `clip` > 0 the worse of the value and the value kept near the old one."""
    error = (values_k - targets_k).square()
    if clip > 0:
        near = old_k + (values_k - old_k).clamp(-clip, clip)
        error = torch.maximum(error, (near - targets_k).square())
    return 0.5 * (weights_k * error).sum()
