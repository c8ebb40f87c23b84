"""Attention over layouts that a padded batch cannot express, through transformers' public attention interface.

A forward pass of ours is one packed sequence `[1, N]`; who may see whom is decided by an `AttentionPlan` that is handed
down to every layer as a keyword. Training packs whole rows (`PackedRows`), sampling packs the new tokens of many
requests whose past lies in a cache (`stepwell.policy.kv_cache`). No padding is ever computed.

Shape letters: N packed tokens, H query heads, K key/value heads, D head size, L tokens of one row.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION = "stepwell"
"""Value for `attn_implementation` when a model is loaded."""
_VARIANTS: Final = ("sliding_window", "softcap", "s_aux")
"""Keywords by which a layer asks for something else than full causal softmax attention (`s_aux`: attention sinks)."""


class AttentionPlan(Protocol):
    """Which packed tokens attend to which keys."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention output [H, N, D] for query [H, N, D] and the new tokens' key and value [K, N, D]."""
        ...


class PackedRows:
    """Independent causal rows laid end to end; neighbours of equal length are computed as one batch.

    With `shared` > 0 the first `shared` tokens are the beginning of every row, laid down and computed once.
    """

    def __init__(self, lengths: Sequence[int], shared: int = 0) -> None:
        """`lengths` are the tokens that each row has of its own, in order."""
        self._shared = shared
        self._runs = [(length, len(list(same))) for length, same in groupby(lengths)]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:  # noqa: ARG002
        """Causal attention within each row."""
        begin = slice(0, self._shared)
        past_k, past_v = key[:, begin], value[:, begin]
        start = self._shared
        outputs = [causal_attention(query[None, :, begin], past_k[None], past_v[None], scale)[0]] if start else []
        for length, count in self._runs:
            rows = slice(start, start + length * count)
            q, k, v = (_rows_first(x[:, rows], count, length) for x in (query, key, value))
            k, v = (torch.cat([p.expand(count, -1, -1, -1), x], dim=2) for p, x in ((past_k, k), (past_v, v)))
            outputs.append(causal_attention(q, k, v, scale).transpose(0, 1).flatten(1, 2))
            start = rows.stop
        return torch.cat(outputs, dim=1)


def causal_attention(q_bhld: Tensor, k_bktd: Tensor, v_bktd: Tensor, scale: float) -> Tensor:
    """Attention [B, H, L, D] of the newest L of T tokens: token i of them sees keys up to T - L + i."""
    (heads, new), (kv_heads, total) = q_bhld.shape[1:3], k_bktd.shape[1:3]
    if new == total:
        return scaled_dot_product_attention(
            q_bhld, k_bktd, v_bktd, is_causal=True, scale=scale, enable_gqa=heads != kv_heads
        )
    mask = None
    if new > 1:
        mask = torch.ones(new, total, dtype=torch.bool).tril(total - new).repeat(heads // kv_heads, 1)
    # query heads that share a key/value head become further query rows of it: no copies of keys and values
    q = q_bhld.reshape(len(q_bhld), kv_heads, -1, q_bhld.shape[3])
    out = scaled_dot_product_attention(q, k_bktd, v_bktd, attn_mask=mask, scale=scale)
    return out.reshape(q_bhld.shape)


def _rows_first(x_hnd: Tensor, count: int, length: int) -> Tensor:
    """[H, count*L, D] to [count, H, L, D]."""
    return x_hnd.unflatten(1, (count, length)).transpose(0, 1)


def _planned_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    plan: AttentionPlan | None = None,
    **variant: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in each attention layer: query [1, H, N, D], key and value [1, K, N, D]."""
    if plan is None or attention_mask is not None:
        raise TypeError("a model loaded for Stepwell needs `plan=`: call it through stepwell.policy.model.Policy")
    asked = [name for name in _VARIANTS if variant.get(name) is not None]
    if asked:
        raise TypeError(f"attention with {', '.join(asked)} is not supported yet")
    # rotary embeddings leave queries and keys in float32 where the products, and so the values, are bfloat16
    query, key = query.to(value.dtype), key.to(value.dtype)
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # a plain int that torch types as Tensor | Module
    out = plan.attend(layer, query[0], key[0], value[0], scaling)
    return out.transpose(0, 1).unsqueeze(0), None


AttentionInterface.register(ATTENTION, _planned_attention)
