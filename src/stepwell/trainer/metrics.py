"""What an update measures, under the names that the field uses.

Shape letters: M response tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from stepwell.policy.ranks import Ranks
from stepwell.prefix_tree.pack import Packing
from stepwell.trainer.losses import kl_estimate
from stepwell.trainer.ratios import MAX_LOG_RATIO
from stepwell.types import Group, Sample


def collected(groups: Sequence[Group]) -> dict[str, float]:
    """What is known of an update's groups before anything is learnt from them."""
    trajectories = [t for group in groups for t in group.trajectories]
    rewards = np.array([t.reward for t in trajectories], np.float64)
    steps = [sum(step.side != "state" for step in t.steps) for t in trajectories]  # the last state was only looked at
    metrics = {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "trajectories": float(len(trajectories)),
        "steps_per_trajectory": float(np.mean(steps)),
        "sampled_tokens": float(sum(len(step.response_ids) for t in trajectories for step in t.steps)),
        "truncated_rate": float(np.mean([t.status == "truncated" for t in trajectories])),
    }
    parts: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.reward_parts:
            parts.setdefault(name, []).append(value)
    return metrics | {f"reward/{name}": sum(values) / len(trajectories) for name, values in parts.items()}


@dataclass(slots=True)
class Totals:
    """Sums over the micro-batches of an update."""

    tokens: int = 0
    optimizer_steps: int = 0
    skipped: int = 0
    policy_loss: float = 0.0
    value_loss: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    kl: float = 0.0
    reference_kl: float = 0.0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    ratio_error: float = 0.0
    gap: float = 0.0
    gap_max: float = 0.0
    correction: float = 0.0
    masked: float = 0.0
    grad_norms: float = 0.0
    flat_tokens: int = 0
    tree_tokens: int = 0
    tree_seconds: float = 0.0

    def over(self, ranks: Ranks) -> "Totals":
        """Those of all ranks together, on each of them."""
        every: dict[str, Any] = {}
        for names, joined in ((_ADDED, ranks.total), (_LARGEST, ranks.largest)):
            own = torch.tensor([getattr(self, name) for name in names], dtype=torch.float64)
            every |= dict(zip(names, joined(own).tolist(), strict=True))
        return replace(self, **every)

    @torch.no_grad()
    def tokens_seen(self, new_m: Tensor, old_m: Tensor, rollout_m: Tensor, reference_m: Tensor) -> None:
        """Compare the log-probabilities of response tokens: now, before the update, as sampled, of the reference."""
        difference = (new_m - old_m).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = difference.exp()
        gap = (new_m - rollout_m).abs()
        self.tokens += len(new_m)
        self.kl += float((torch.expm1(difference) - difference).sum())
        self.ratio_sum += float(ratio.sum())
        self.gap += float(gap.sum())
        if len(reference_m):
            self.reference_kl += float(kl_estimate(new_m, reference_m, "k3").sum())
        if len(ratio):
            self.ratio_max = max(self.ratio_max, float(ratio.max()))
            self.ratio_error = max(self.ratio_error, float((ratio - 1).abs().max()))
            self.gap_max = max(self.gap_max, float(gap.max()))

    def packed(self, packing: Packing, seconds: float) -> None:
        """How the samples of an optimiser step became micro-batches, and how long that took."""
        self.flat_tokens += packing.flat_tokens
        self.tree_tokens += packing.tokens
        self.tree_seconds += seconds

    def named(self, samples: Sequence[Sample], *, corrected: bool = False) -> dict[str, float]:
        """All of it by name, with what is known of the `samples` that the update trained on."""
        tokens, steps = max(self.tokens, 1), max(self.optimizer_steps, 1)
        metrics = {
            "policy_loss": self.policy_loss / steps,
            "value_loss": self.value_loss / steps,
            "entropy": self.entropy / tokens,
            "approx_kl": self.kl / tokens,
            "clip_fraction": self.clipped / tokens,
            "ratio_mean": self.ratio_sum / tokens,
            "ratio_max": self.ratio_max,
            "ratio_error": self.ratio_error,
            "logprob_gap_mean": self.gap / tokens,
            "logprob_gap_max": self.gap_max,
            "grad_norm": self.grad_norms / steps,
            "optimizer_steps": float(self.optimizer_steps),
            "skipped_optimizer_steps": float(self.skipped),
            "trained_steps": float(len(samples)),
            "trained_tokens": float(sum(len(s.token_ids) for s in samples)),
            "response_tokens": float(sum(len(s.advantages) for s in samples)),
            "tree_tokens": float(self.tree_tokens),
            "tree_ratio": self.tree_tokens / max(self.flat_tokens, 1),
            "seconds_tree": self.tree_seconds,
        }
        if any(len(s.reference_logprobs) for s in samples):
            metrics["reference_kl"] = self.reference_kl / tokens
        if corrected:
            metrics |= {"correction_mean": self.correction / tokens, "masked_rate": self.masked / tokens}
        return metrics | _critic(samples)


_ADDED: Final = (
    *("tokens", "policy_loss", "value_loss", "entropy", "clipped", "kl", "reference_kl"),
    *("ratio_sum", "gap", "correction", "masked"),
)
"""What ranks see of their own micro-batches only; whatever is not here is the same on all of them."""
_LARGEST: Final = ("ratio_max", "ratio_error", "gap_max", "tree_seconds")


def _critic(samples: Sequence[Sample]) -> dict[str, float]:
    """Share of the targets' variance that the values before the update explain; nothing where targets do not vary."""
    targets = np.concatenate([s.value_targets for s in samples])
    old = np.concatenate([s.old_values for s in samples])
    if len(targets) < 2 or not targets.var() > 0:
        return {}
    return {"explained_variance": float(1 - (targets - old).var() / targets.var())}
