"""FlexAttention: block-sparse and compiled, for GPUs. It has no backward pass on a CPU."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from stepwell.policy.attention import Scores
from stepwell.prefix_tree.tree import PrefixTree


class Flex:
    """Attention plan with a `BlockMask`: blocks in which no token sees another are never computed."""

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self._tokens = len(tree.ids)
        self._ends = torch.from_numpy(tree.ends).to(device)
        self._positions = torch.from_numpy(tree.positions).to(device)
        self._masks: dict[int | None, BlockMask] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:  # noqa: ARG002
        """Attention by the compiled kernel."""
        if scores.window not in self._masks:
            self._masks[scores.window] = self.block_mask(scores.window)
        out = _kernel()(
            query[None],
            key[None],
            value[None],
            score_mod=_capped(scores.softcap),
            block_mask=self._masks[scores.window],
            scale=scores.scale,
            enable_gqa=query.shape[0] != key.shape[0],
        )
        return out[0]

    def block_mask(self, window: int | None) -> BlockMask:
        """Who sees whom, by the interval of each token's subtree."""
        ends, positions = self._ends, self._positions

        def visible(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001
            seen = (j <= i) & (i < ends[j])
            return seen if window is None else seen & (positions[i] - positions[j] < window)

        return create_block_mask(visible, None, None, self._tokens, self._tokens, device=ends.device)


@cache
def _kernel() -> Any:
    return torch.compile(flex_attention, dynamic=True)


@cache
def _capped(softcap: float | None) -> Any:
    if softcap is None:
        return None

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped
