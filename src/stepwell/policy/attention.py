"""Attention over layouts that a padded batch cannot express, through transformers' public attention interface.

A forward pass of ours is one packed sequence `[1, N]`; who may see whom is decided by an `AttentionPlan` that is handed
down to every layer as a keyword. Training packs the prefix tree of many rows (`stepwell.policy.tree_attention`),
sampling the new tokens of many requests whose past lies in a cache (`stepwell.policy.kv_cache`). No padding is ever
computed.

Shape letters: N packed tokens, H query heads, K key/value heads, D head size, L newest of T tokens.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION = "stepwell"
"""Value for `attn_implementation` when a model is loaded."""
_UNSUPPORTED: Final = ("s_aux",)
"""Keywords by which a layer asks for what no plan can do (`s_aux`: attention sinks)."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How a layer makes its scores of queries and keys."""

    scale: float
    window: int | None = None
    """A token sees itself and the `window` - 1 positions before it; None: all before it."""
    softcap: float | None = None
    """Scores are squashed into (-softcap, softcap) by tanh, before the softmax."""


class AttentionPlan(Protocol):
    """Which packed tokens attend to which keys."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Attention output [H, N, D] for query [H, N, D] and the new tokens' key and value [K, N, D]."""
        ...


def causal_attention(q_bhld: Tensor, k_bktd: Tensor, v_bktd: Tensor, scores: Scores) -> Tensor:
    """Attention [B, H, L, D] of the newest L of T tokens: token i of them sees keys up to T - L + i."""
    (heads, new), (kv_heads, total) = q_bhld.shape[1:3], k_bktd.shape[1:3]
    hidden = scores.window is not None and scores.window < total
    if scores.softcap is None and new == total and not hidden:
        return scaled_dot_product_attention(
            q_bhld, k_bktd, v_bktd, is_causal=True, scale=scores.scale, enable_gqa=heads != kv_heads
        )
    if hidden and scores.window is not None:  # what not even the oldest of the new tokens sees
        k_bktd, v_bktd = (x[:, :, max(0, total - new - scores.window + 1) :] for x in (k_bktd, v_bktd))
        total = k_bktd.shape[2]
    visible = None
    if new > 1:
        visible = torch.ones(new, total, dtype=torch.bool, device=q_bhld.device).tril(total - new)
        visible = visible.triu(total - new - scores.window + 1) if scores.window is not None else visible
    return masked_attention(q_bhld, k_bktd, v_bktd, visible, scores)


def masked_attention(
    q_bhld: Tensor, k_bktd: Tensor, v_bktd: Tensor, visible_lt: Tensor | None, scores: Scores
) -> Tensor:
    """Attention [B, H, L, D] of each query to the keys that are visible to it, bool [..., L, T]; None: to all."""
    (batch, heads), kv_heads, size = q_bhld.shape[:2], k_bktd.shape[1], q_bhld.shape[3]
    # query heads that share a key/value head become further query rows of it: no copies of keys and values
    q = q_bhld.reshape(batch, kv_heads, -1, size)
    mask = None if visible_lt is None else visible_lt.tile((heads // kv_heads, 1))
    if scores.softcap is None:
        out = scaled_dot_product_attention(q, k_bktd, v_bktd, attn_mask=mask, scale=scores.scale)
    else:
        raw = at_least_single(q @ k_bktd.transpose(-1, -2)) * scores.scale
        capped = scores.softcap * torch.tanh(raw / scores.softcap)
        if mask is not None:
            capped = capped.masked_fill(~mask, -math.inf)
        out = capped.softmax(-1).to(v_bktd.dtype) @ v_bktd
    return out.reshape(q_bhld.shape)


def at_least_single(x: Tensor) -> Tensor:
    """In float32, or in what it is if that is wider: sums and exponentials want it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _planned_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    plan: AttentionPlan | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **variant: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in each attention layer: query [1, H, N, D], key and value [1, K, N, D]."""
    if plan is None or attention_mask is not None:
        raise TypeError("a model loaded for Stepwell needs `plan=`: call it through stepwell.policy.model.Policy")
    asked = [name for name in _UNSUPPORTED if variant.get(name) is not None]
    if asked:
        raise TypeError(f"attention with {', '.join(asked)} is not supported yet")
    if value.shape[-1] != query.shape[-1]:
        raise TypeError(f"values of size {value.shape[-1]} for queries of size {query.shape[-1]} are not supported yet")
    # rotary embeddings leave queries and keys in float32 where the products, and so the values, are bfloat16
    query, key = query.to(value.dtype), key.to(value.dtype)
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # a plain int that torch types as Tensor | Module
    out = plan.attend(layer, query[0], key[0], value[0], Scores(scaling, sliding_window, softcap))
    return out.transpose(0, 1).unsqueeze(0), None


AttentionInterface.register(ATTENTION, _planned_attention)
