"""The objectives, as functions of tensors.

Shape letters: M response tokens, B samples, K supervised values.
"""

import torch
from torch import Tensor

from stepwell.algorithms.base import Objective

MAX_LOG_RATIO = 10.0
"""exp(10) is far outside every clip range; beyond it a ratio would only overflow."""


def log_ratio(new_m: Tensor, old_m: Tensor, row_m: Tensor, kind: str) -> Tensor:
    """Log of the probability ratio new/old at each response token, [M].

    `token`: each token's own. `geo`: the mean over the tokens of its step, in the form of GSPO-token (Zheng et al.
    2025, arXiv 2507.18071): its value is the step's, its gradient flows through the token's own log-probability, so
    that the weighted sum over a step has the gradient of the step's geometric mean.
    """
    z = new_m - old_m
    if kind == "geo":
        rows = int(row_m.max()) + 1 if len(row_m) else 0
        count = torch.zeros(rows, dtype=z.dtype).index_add(0, row_m, torch.ones_like(z))
        mean = torch.zeros(rows, dtype=z.dtype).index_add(0, row_m, z.detach()) / count
        z = mean[row_m] + new_m - new_m.detach()
    return z.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def policy_loss(
    log_ratio_m: Tensor, advantages_m: Tensor, weights_m: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate, weighted: (loss to minimise, scalar; mask [M] of the tokens whose gradient was clipped).

    -Σ w · min(ρA, clip(ρ, 1-ε_low, 1+ε_high) A), Schulman et al. 2017 (arXiv 1707.06347) eq. 7.
    """
    ratio = log_ratio_m.exp()
    clipped = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    free, bound = ratio * advantages_m, clipped * advantages_m
    return -(weights_m * torch.minimum(free, bound)).sum(), bound < free


def value_loss(values_k: Tensor, targets_k: Tensor, old_k: Tensor, weights_k: Tensor, clip: float) -> Tensor:
    """Half the squared error, weighted; with `clip` > 0 the worse of the value and the value kept near the old one."""
    error = (values_k - targets_k).square()
    if clip > 0:
        near = old_k + (values_k - old_k).clamp(-clip, clip)
        error = torch.maximum(error, (near - targets_k).square())
    return 0.5 * (weights_k * error).sum()
