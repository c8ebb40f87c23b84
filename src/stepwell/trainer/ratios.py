"""Probability ratios between policies, of tokens and of what tokens make up.

Every kind is written token by token, as GSPO-token is (Zheng et al. 2025, arXiv 2507.18071): the value is that of the
whole unit (a step or a trajectory), the gradient flows through the token's own log-probability, scaled so that the
weighted sum over a unit has the gradient of the unit's ratio. So advantages may differ within a unit, and the loss
needs no case for each kind.

Shape letters: M response tokens, B samples.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stepwell.algorithms.objective import Ratio
from stepwell.types import Floats, Sample

MAX_LOG_RATIO = 10.0
"""exp(10) is far outside every clip range; beyond it a ratio would only overflow."""


def log_ratio(
    new_m: Tensor,
    old_m: Tensor,
    row_m: Tensor,
    kind: Ratio,
    *,
    scale_m: Tensor | None = None,
    shared: Tensor | None = None,
) -> Tensor:
    """Log of the probability ratio new/old of the unit of each response token, [M].

    With z = new - old, L the tokens of a step and z̄ their mean: `token` z; `geo` z̄; `exact` L·z̄; `sqrt`
    μ + √L·(z̄ - μ) (StepPO v5, CAPO); `sequence` the mean over a trajectory.

    Args:
        new_m: log-probabilities now, with gradient.
        old_m: log-probabilities before.
        row_m: int64 [M], which step each token belongs to.
        kind: see above.
        scale_m: [M], see `gradient_scale`; None where every token's is that of equal weights within a step.
        shared: what does not follow from the tokens at hand: for `sqrt` the mean μ of z over all tokens of the
            optimiser step, a scalar; for `sequence` the mean over the token's trajectory, [M].

    Raises:
        ValueError: `sqrt` or `sequence` without `shared`.
    """
    z = (new_m - old_m).detach()
    if kind == "token":
        return _bounded(z, new_m - new_m.detach())
    count, mean = _row_means(z, row_m)
    if scale_m is None:
        scale_m = {"geo": torch.ones_like(count), "sqrt": count.sqrt(), "exact": count}[kind][row_m]
    return _bounded(_value(kind, count, mean, row_m, shared), scale_m * (new_m - new_m.detach()))


def _bounded(value: Tensor, gradient: Tensor) -> Tensor:
    """The value is bounded, so that nothing overflows; the gradient, which is 0 in value, is there all the same."""
    return value.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) + gradient


def _value(kind: Ratio, count: Tensor, mean: Tensor, row_m: Tensor, shared: Tensor | None) -> Tensor:
    if kind == "geo":
        return mean[row_m]
    if kind == "exact":
        return (count * mean)[row_m]
    if shared is None:
        raise ValueError(f"the ratio {kind!r} needs what the other tokens of the optimiser step share")
    return (shared + count.sqrt() * (mean - shared))[row_m] if kind == "sqrt" else shared


def _row_means(z: Tensor, row_m: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens of each row, and the mean over them, both [B]."""
    rows = int(row_m.max()) + 1 if len(row_m) else 0
    count = torch.zeros(rows, dtype=z.dtype).index_add(0, row_m, torch.ones_like(z))
    total = torch.zeros(rows, dtype=z.dtype).index_add(0, row_m, z)
    return count, total / count.clamp(min=1)


def gradient_scale(samples: Sequence[Sample], weights: Sequence[Floats], kind: Ratio) -> list[Floats]:
    """By how much each token's gradient has to be scaled, float32 [R] per sample.

    A unit of weight W = Σ w_j whose log-ratio has the gradient g·Σ∇log π_j is to pull with W·g at each of its tokens,
    but the loss gives token j the weight w_j: so its scale is W·g / w_j. g is 1/L for `geo`, 1/√L for `sqrt`, 1 for
    `exact`, and one over the tokens of the trajectory for `sequence`. Tokens of weight 0 have scale 0.
    """
    units = [s.trajectory_id if kind == "sequence" else s.step_id for s in samples]
    sizes: dict[str, int] = {}
    totals: dict[str, float] = {}
    for unit, weight in zip(units, weights, strict=True):
        sizes[unit] = sizes.get(unit, 0) + len(weight)
        totals[unit] = totals.get(unit, 0.0) + float(weight.sum(dtype=np.float64))
    return [
        _scaled(weight, totals[unit] * _slope(kind, sizes[unit])) for unit, weight in zip(units, weights, strict=True)
    ]


def _slope(kind: Ratio, tokens: int) -> float:
    if kind in ("geo", "sequence"):
        return 1 / max(tokens, 1)
    return float(tokens) ** -0.5 if kind == "sqrt" and tokens else 1.0


def _scaled(weight: Floats, pull: float) -> Floats:
    safe = np.where(weight > 0, weight, 1)
    return np.where(weight > 0, pull / safe, 0).astype(np.float32)
