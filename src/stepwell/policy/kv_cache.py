"""Keys and values that outlive one forward pass, so that a shared prefix is computed once.

Shape letters: S slots, K key/value heads, C capacity in tokens, D head size, H query heads, N packed tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from stepwell.policy.attention import Scores, causal_attention, masked_attention
from stepwell.types import Ids


class KVSlots:
    """Keys and values of up to `count` sequences, and the token ids that they belong to."""

    def __init__(self, count: int) -> None:
        self.lengths = np.zeros(count, np.int64)
        """[S] how many tokens each slot holds."""
        self._ids_sc = np.zeros((count, 0), np.int32)
        self._stale = np.zeros(count, np.bool_)
        self._keys_skcd: dict[int, Tensor] = {}
        self._values_skcd: dict[int, Tensor] = {}

    def forget(self, busy: Sequence[int] = ()) -> None:
        """Share nothing that older weights computed: empty all slots but those in use, and never copy from those."""
        self._stale[:] = False
        self._stale[list(busy)] = True
        self.lengths[~self._stale] = 0

    def longest_prefix(self, tokens: Ids) -> tuple[int, int]:
        """(slot, length) of the longest common prefix of `tokens` with what a slot holds."""
        n = min(len(tokens), self._ids_sc.shape[1])
        equal = np.logical_and.accumulate(self._ids_sc[:, :n] == tokens[:n], axis=1).sum(axis=1)
        lengths = np.where(self._stale, 0, np.minimum(equal, self.lengths))
        best = int(lengths.argmax())
        return best, int(lengths[best])

    def extend(self, slot: int, ids: Ids) -> "Segment":
        """Give `slot` more tokens, whose keys and values the next forward pass has to write."""
        start = int(self.lengths[slot])
        stop = start + len(ids)
        self._reserve(stop)
        self._ids_sc[slot, start:stop] = ids
        self.lengths[slot] = stop
        return Segment(slot, start, ids)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make `target` hold the first `length` tokens of `source`, which may be itself."""
        self.lengths[target] = length
        self._stale[target] = False
        if source == target:
            return
        self._ids_sc[target, :length] = self._ids_sc[source, :length]
        for buffer in (*self._keys_skcd.values(), *self._values_skcd.values()):
            buffer[target, :, :length] = buffer[source, :, :length]

    def _reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens in every slot, and for some more, so that this is rare."""
        old = self._ids_sc.shape[1]
        if capacity <= old:
            return
        more = max(64, capacity + capacity // 4) - old
        self._ids_sc = np.pad(self._ids_sc, ((0, 0), (0, more)))
        for buffers in (self._keys_skcd, self._values_skcd):
            for layer, buffer in buffers.items():
                buffers[layer] = torch.nn.functional.pad(buffer, (0, 0, 0, more))

    def layer(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [S, K, C, D] each; made like a key [K, N, D] when asked for the first time."""
        for buffers in (self._keys_skcd, self._values_skcd):
            if layer not in buffers:
                buffers[layer] = like.new_zeros(
                    (*self._ids_sc.shape[:1], like.shape[0], self._ids_sc.shape[1], like.shape[2])
                )
        return self._keys_skcd[layer], self._values_skcd[layer]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive new tokens of one slot."""

    slot: int
    start: int
    """How many tokens the slot holds already."""
    ids: Ids


_SHORT: Final = 128
"""Up to this many tokens, gathering the pasts of single-token segments into one batch beats a call for each."""


class CachedSegments:
    """Attention plan over a cache: each segment sees its slot's past and, causally, itself."""

    def __init__(self, slots: KVSlots, segments: Sequence[Segment]) -> None:
        self._slots = slots
        self._segments = segments
        totals = [s.start + len(s.ids) for s in segments]
        self._batched = all(len(s.ids) == 1 for s in segments) and max(totals) <= _SHORT
        self._at = torch.tensor([s.slot for s in segments])
        self._last = torch.tensor(totals) - 1
        self._visible = torch.arange(max(totals)) <= self._last[:, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Write the new keys and values into their slots and attend to all that the slots hold."""
        keys, values = self._slots.layer(layer, key)
        if self._batched:
            return self._attend_batched(query, key, value, keys, values, scores)
        out = torch.empty_like(query)
        at = 0
        for segment in self._segments:
            rows = slice(at, at + len(segment.ids))
            at = rows.stop
            stop = segment.start + len(segment.ids)
            keys[segment.slot, :, segment.start : stop] = key[:, rows]
            values[segment.slot, :, segment.start : stop] = value[:, rows]
            past = keys[segment.slot, None, :, :stop], values[segment.slot, None, :, :stop]
            out[:, rows] = causal_attention(query[None, :, rows], *past, scores)[0]
        return out

    def _attend_batched(
        self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, scores: Scores
    ) -> Tensor:
        """All segments at once: one new token each."""
        keys[self._at, :, self._last] = key.transpose(0, 1)
        values[self._at, :, self._last] = value.transpose(0, 1)
        visible = self._visible
        if scores.window is not None:
            visible = visible & (torch.arange(visible.shape[1]) > self._last[:, None] - scores.window)
        k, v = (x[self._at, :, : visible.shape[1]] for x in (keys, values))
        out = masked_attention(query.transpose(0, 1)[:, :, None], k, v, visible[:, None, None], scores)
        return out[:, :, 0].transpose(0, 1)
