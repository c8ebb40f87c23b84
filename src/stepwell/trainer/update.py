"""One update: the critic's values before it, and the optimiser step that makes the next policy version.

Shape letters: M response tokens, K supervised values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from stepwell.algorithms.base import Objective, Scope
from stepwell.config import Config
from stepwell.errors import NonFiniteUpdate
from stepwell.policy.attention import PackedRows
from stepwell.policy.model import Policy
from stepwell.policy.scoring import prompt_hidden
from stepwell.trainer.collate import MicroBatch, pack
from stepwell.trainer.losses import MAX_LOG_RATIO, log_ratio, policy_loss, value_loss
from stepwell.types import Floats, Sample, Step


class LearnerConfig(Config):
    """The optimiser."""

    lr: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    """AdamW's learning rate for the policy."""
    critic_lr: float = Field(default=1e-3, ge=0, allow_inf_nan=False)
    """AdamW's learning rate for the value head."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """AdamW's decoupled weight decay, policy only."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the policy's gradient; it is scaled down to this."""
    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Tokens of one forward and backward pass; bounds memory, changes no result."""


@dataclass(slots=True)
class _Totals:
    """What an update measures, summed over micro-batches."""

    tokens: int = 0
    policy_loss: float = 0.0
    value_loss: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    kl: float = 0.0
    ratio_sum: float = 0.0
    ratio_error: float = 0.0


class Learner:
    """Owns the optimiser; changes the policy it was given."""

    def __init__(self, policy: Policy, config: LearnerConfig) -> None:
        self.policy = policy
        self._config = config
        self._parameters = policy.trainable_parameters()
        self._critic = list(policy.value_head.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": self._parameters, "lr": config.lr, "weight_decay": config.weight_decay},
                {"params": self._critic, "lr": config.critic_lr, "weight_decay": 0.0},
            ],
            betas=(0.9, 0.95),
        )

    @torch.no_grad()
    def values(self, steps: Sequence[Step], scope: Scope) -> dict[str, Floats]:
        """The critic's values by step id, float32 [V]: V = 1 for "step", R for "token", no entries for "none"."""
        if scope == "none" or not steps:
            return {}
        if scope == "step":
            values = self.policy.values(prompt_hidden(self.policy, [s.prompt_ids for s in steps])).numpy()
            return {step.id: values[i : i + 1] for i, step in enumerate(steps)}
        return {step.id: self._token_values(step) for step in steps}

    def _token_values(self, step: Step) -> Floats:
        ids = torch.from_numpy(np.concatenate([step.prompt_ids, step.response_ids]).astype(np.int64))
        hidden = self.policy.hidden(ids, torch.arange(len(ids)), PackedRows([len(ids)]))
        values: Floats = self.policy.values(hidden[len(step.prompt_ids) - 1 : -1]).numpy()
        return values

    def update(
        self,
        samples: Sequence[Sample],
        objective: Objective,
        on_micro_batch: Callable[[MicroBatch], None] | None = None,
    ) -> dict[str, float]:
        """Make the next policy version from these samples and give what was measured on the way.

        Gradients are accumulated over micro-batches, so their size changes no result beyond float rounding.

        Args:
            samples: at least one.
            objective: the loss.
            on_micro_batch: called with each micro-batch before its forward pass: for checks and counters.

        Raises:
            NonFiniteUpdate: a gradient is NaN or infinite; weights and version are as before.
        """
        self.optimizer.zero_grad(set_to_none=True)
        totals = _Totals()
        for batch in pack(samples, objective, self._config.micro_batch_tokens):
            if on_micro_batch:
                on_micro_batch(batch)
            self._accumulate(batch, objective, totals)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.grad_clip)
        critic_norm = torch.nn.utils.clip_grad_norm_(self._critic, self._config.grad_clip)
        if not (torch.isfinite(norm) and torch.isfinite(critic_norm)):
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFiniteUpdate(f"the gradient is not finite (norm {norm}); the weights were left as they were")
        with self.policy.writing():
            self.optimizer.step()
            self.policy.version += 1
        self.optimizer.zero_grad(set_to_none=True)
        return _metrics(totals, samples, float(norm))

    def _accumulate(self, batch: MicroBatch, objective: Objective, totals: _Totals) -> None:
        hidden = self.policy.hidden(batch.ids, batch.positions, PackedRows(batch.lengths, batch.shared))
        logp = (self.policy.logits(hidden[batch.predicting]) / batch.temperatures[:, None]).log_softmax(-1)
        new = logp.gather(1, batch.targets[:, None]).squeeze(1)
        ratios = log_ratio(new, batch.logprobs, batch.row, objective.ratio)
        loss, clipped = policy_loss(ratios, batch.advantages, batch.weights, objective)
        values = self.policy.values(hidden[batch.value_at])
        critic = value_loss(values, batch.value_targets, batch.old_values, batch.value_weights, objective.value_clip)
        (loss + objective.value_coefficient * critic).backward()
        _measure(totals, batch, logp.detach(), new.detach(), clipped, loss.item(), critic.item())


def _measure(
    totals: _Totals, batch: MicroBatch, logp_mw: Tensor, new_m: Tensor, clipped_m: Tensor, policy: float, critic: float
) -> None:
    difference = (new_m - batch.logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = difference.exp()
    totals.tokens += len(new_m)
    totals.policy_loss += policy
    totals.value_loss += critic
    totals.entropy += float(-(logp_mw.exp() * logp_mw).sum())
    totals.clipped += float(clipped_m.sum())
    totals.kl += float((torch.expm1(difference) - difference).sum())
    totals.ratio_sum += float(ratio.sum())
    totals.ratio_error = max(totals.ratio_error, float((ratio - 1).abs().max()) if len(ratio) else 0.0)


def _metrics(totals: _Totals, samples: Sequence[Sample], grad_norm: float) -> dict[str, float]:
    tokens = max(totals.tokens, 1)
    targets = np.concatenate([s.value_targets for s in samples])
    old = np.concatenate([s.old_values for s in samples])
    metrics = {
        "policy_loss": totals.policy_loss,
        "value_loss": totals.value_loss,
        "entropy": totals.entropy / tokens,
        "approx_kl": totals.kl / tokens,
        "clip_fraction": totals.clipped / tokens,
        "ratio_mean": totals.ratio_sum / tokens,
        "ratio_error": totals.ratio_error,
        "grad_norm": grad_norm,
        "zero_advantage_rate": float(np.mean([not s.advantages.any() for s in samples])),
        "trained_steps": float(len(samples)),
        "trained_tokens": float(sum(len(s.token_ids) for s in samples)),
        "response_tokens": float(totals.tokens),
    }
    if len(targets) > 1 and targets.var() > 0:
        metrics["explained_variance"] = float(1 - (targets - old).var() / targets.var())
    return metrics
