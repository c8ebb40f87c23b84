"""Attention over layouts that a padded batch cannot express, through transformers' public attention interface.

A forward pass of ours is one packed sequence `[1, N]`; who may see whom is decided by an `AttentionPlan` that is handed
down to every layer as a keyword. Training packs whole rows (`PackedRows`), sampling packs the new tokens of many
requests whose past lies in a cache (`stepwell.engines.local`). No padding is ever computed.

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
    """Independent causal rows laid end to end; neighbours of equal length are computed as one batch."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._runs = [(length, len(list(same))) for length, same in groupby(lengths)]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:  # noqa: ARG002
        """Causal attention within each row."""
        outputs, start = [], 0
        for length, count in self._runs:
            rows = slice(start, start + length * count)
            q, k, v = (_rows_first(x[:, rows], count, length) for x in (query, key, value))
            out = scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            outputs.append(out.transpose(0, 1).flatten(1, 2))
            start = rows.stop
        return torch.cat(outputs, dim=1)


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
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # a plain int that torch types as Tensor | Module
    out = plan.attend(layer, query[0], key[0], value[0], scaling)
    return out.transpose(0, 1).unsqueeze(0), None


AttentionInterface.register(ATTENTION, _planned_attention)
