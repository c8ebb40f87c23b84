"""AdamW for the policy and its critic, with a learning rate that follows a schedule."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from stepwell.config import Config
from stepwell.policy.model import Policy
from stepwell.policy.shards import whole

_Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Config):
    """AdamW and its schedule, counted in updates, so that it does not depend on how an update is cut."""

    lr: float = Field(default=1e-4, ge=0)
    """AdamW's learning rate for the policy."""
    critic_lr: float = Field(default=1e-3, ge=0)
    """AdamW's learning rate for the value head, and for the critic's own model."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay, policy only."""
    betas: tuple[_Beta, _Beta] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the policy's gradient; it is scaled down to this."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the learning rates rise linearly from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How they fall afterwards."""
    schedule_updates: int = Field(default=0, ge=0)
    """Update at which a falling schedule ends, at `schedule_end` of the learning rate."""
    schedule_end: float = Field(default=0.0, ge=0, le=1)
    """See `schedule_updates`."""

    @model_validator(mode="after")
    def _falls_somewhere(self) -> "OptimizerConfig":
        if self.schedule != "constant" and self.schedule_updates <= self.warmup_updates:
            raise ValueError(
                f"schedule={self.schedule} needs schedule_updates, the update at which it ends, after "
                f"the {self.warmup_updates} of warmup_updates"
            )
        return self


def make_optimizer(policy: Policy, config: OptimizerConfig) -> torch.optim.AdamW:
    """Group 0 is the policy, group 1 the critic."""
    return torch.optim.AdamW(
        [
            {"params": policy.trainable_parameters(), "lr": config.lr, "weight_decay": config.weight_decay},
            {"params": policy.critic_parameters(), "lr": config.critic_lr, "weight_decay": 0.0},
        ],
        betas=config.betas,
    )


def clip_gradient(parameters: Sequence[nn.Parameter], limit: float) -> Tensor:
    """Scale a gradient down to the norm `limit`; gives the norm that it had, over all ranks if it is sharded."""
    norm = whole(get_total_norm([p.grad for p in parameters if p.grad is not None]))
    clip_grads_with_norm_(parameters, limit, norm)
    return norm


def set_learning_rates(optimizer: torch.optim.Optimizer, config: OptimizerConfig, update: int) -> float:
    """Set what is due in the update after `update` earlier ones; gives the policy's learning rate."""
    share = schedule_share(config, update)
    for group, rate in zip(optimizer.param_groups, (config.lr, config.critic_lr), strict=True):
        group["lr"] = rate * share
    return config.lr * share


def schedule_share(config: OptimizerConfig, update: int) -> float:
    """The share of the learning rate that is due in the update after `update` earlier ones, in 0..1."""
    if update < config.warmup_updates:
        return (update + 1) / config.warmup_updates
    if config.schedule == "constant":
        return 1.0
    done = min(1.0, (update - config.warmup_updates) / (config.schedule_updates - config.warmup_updates))
    left = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.schedule_end + (1 - config.schedule_end) * left
