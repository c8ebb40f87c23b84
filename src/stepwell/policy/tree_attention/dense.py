"""The reference: one mask over all pairs of tokens. Simple, for any device, and quadratic in the whole tree."""

import torch
from torch import Tensor

from stepwell.policy.attention import Scores, masked_attention
from stepwell.prefix_tree.tree import PrefixTree


class Dense:
    """Attention plan with a boolean mask [N, N]."""

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self._ends = torch.from_numpy(tree.ends).to(device)
        self._positions = torch.from_numpy(tree.positions).to(device)
        self._visible: dict[int | None, Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:  # noqa: ARG002
        """Attention of all queries to all keys, where the mask allows it."""
        if scores.window not in self._visible:
            self._visible[scores.window] = self.visible(scores.window)
        return masked_attention(query[None], key[None], value[None], self._visible[scores.window], scores)[0]

    def visible(self, window: int | None) -> Tensor:
        """bool [N, N]: whether token i sees token j."""
        place = torch.arange(len(self._ends), device=self._ends.device)
        seen = (place <= place[:, None]) & (place[:, None] < self._ends)
        if window is None:
            return seen
        return seen & (self._positions[:, None] - self._positions < window)
