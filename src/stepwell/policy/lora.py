"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) inside the model, by the peft library."""

import copy
from typing import Any, Literal

from pydantic import Field
from torch import nn

from stepwell.config import Config
from stepwell.errors import ConfigError


class LoRAConfig(Config):
    """Adapters: each chosen linear layer W becomes W + alpha / rank · B·A, of which A and B are trained."""

    rank: int = Field(default=16, ge=1)
    """Rows of A."""
    alpha: int = Field(default=32, ge=1)
    """Scale of what the adapters add."""
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the layers, such as `q_proj`; or all linear ones but the output's."""


def add_adapters(model: nn.Module, config: LoRAConfig) -> None:
    """Freeze `model` and put adapters into it. They add nothing at first, so the policy is what it was.

    Raises:
        ConfigError: peft is not installed, or the model has none of the layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigError("policy.lora needs peft: pip install 'stepwell[lora]'") from error
    targets: Any = config.targets if config.targets == "all-linear" else list(config.targets)
    try:
        # No dropout: a recomputed log-probability must equal the sampled one.
        inject_adapter_in_model(
            LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, lora_dropout=0.0), model
        )
    except ValueError as error:
        raise ConfigError(f"policy.lora.targets: {error}") from error
    model.eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def without_adapters(model: nn.Module) -> nn.Module:
    """A copy of `model` in which what adapters add is part of the weights, so that any program can load it."""
    from peft.tuners.lora import LoraLayer  # noqa: PLC0415 - an optional dependency

    merged = copy.deepcopy(model)
    for name, module in list(merged.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            merged.set_submodule(name, module.get_base_layer())
    return merged
