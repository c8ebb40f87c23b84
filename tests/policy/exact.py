"""Double precision throughout, where the norms and the attention of transformers would round to single."""

import types

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

UNROUNDED = "unrounded"
"""Value for `attn_implementation`: eager attention under transformers' own masks, its softmax in the model's dtype."""


def exact(model: nn.Module) -> nn.Module:
    """Make a model one of float64, in place."""
    for module in model.double().modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(_norm, module)
    return model


def _norm(self: nn.Module, x: Tensor) -> Tensor:
    gemma = type(self).__name__.startswith("Gemma")
    eps = self.eps if gemma else self.variance_epsilon
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (self.weight + gemma)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Query heads [B, H, L, D] in order of the key/value head [B, K, L, D] that they share."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return ((scores + attention_mask).softmax(-1) @ value).transpose(1, 2), None


AttentionInterface.register(UNROUNDED, _attention)
AttentionMaskInterface.register(UNROUNDED, eager_mask)
