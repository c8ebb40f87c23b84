"""Attention over a prefix tree: each token sees the tokens of its own path and no others.

One back end, one file, one entry in the table. All give the same numbers; which one is used is a matter of speed.

Shape letters: N tokens of the tree, H query heads, K key/value heads, D head size.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from stepwell.policy.attention import AttentionPlan, Scores
from stepwell.policy.tree_attention.blocks import Blocks, blocks_of
from stepwell.policy.tree_attention.dense import Dense
from stepwell.policy.tree_attention.flex import Flex
from stepwell.prefix_tree.tree import PrefixTree

BACKENDS: Final[dict[str, Callable[[PrefixTree, torch.device], AttentionPlan]]] = {
    "blocks": Blocks,
    "dense": Dense,
    "flex": Flex,
}


_QUERY: Final = 40
"""Pairs of tokens that are computed in the time that it takes to merge a block into the output of one query."""
_BLOCK: Final = 1e6
"""Pairs, times heads and their size, that are computed in the time that it takes to begin another block."""


class TreeAttention:
    """Attention plan of a tree by the back end that suits the device, the model and the tree."""

    def __init__(self, tree: PrefixTree) -> None:
        self.tree = tree
        self._plans: dict[tuple[torch.device, bool], AttentionPlan] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Attention output [H, N, D] for query [H, N, D], key and value [K, N, D]."""
        kind = query.device, scores.softcap is not None
        if kind not in self._plans:
            width = query.shape[0] * query.shape[2]
            name = choose(self.tree, query.device, scores, width)
            self._plans[kind] = BACKENDS[name](self.tree, query.device)
        return self._plans[kind].attend(layer, query, key, value, scores)


def choose(tree: PrefixTree, device: torch.device, scores: Scores, width: int) -> str:
    """Name of the back end: on a CPU that with the least work, elsewhere always `flex`; `width` is H times D.

    Measured, forward and backward, on some 400 pairs of a tree and a shape of heads: benchmarks/prefix_tree.py.
    """
    if device.type != "cpu":
        return "flex"
    if scores.softcap is not None:
        return "dense"
    blocks = blocks_of(tree)
    merged = sum(block.queries.stop - block.queries.start for block in blocks)
    effort = tree.pairs + _QUERY * merged + _BLOCK / width * len(blocks)
    return "dense" if len(tree.ids) ** 2 < effort else "blocks"


def laid_out(tree: PrefixTree) -> tuple[Tensor, Tensor, TreeAttention]:
    """What a policy evaluates of a tree: ids int64 [N], positions int64 [N], and their attention plan."""
    return torch.from_numpy(tree.ids.astype(np.int64)), torch.from_numpy(tree.positions), TreeAttention(tree)
