"""Keys and values that outlive one forward pass, so that a shared prefix is computed once.

Shape letters: S slots, K key/value heads, C capacity in tokens, D head size, H query heads, N packed tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from stepwell.types import Ids


class KVSlots:
    """Keys and values of up to `count` sequences, and the token ids that they belong to."""

    def __init__(self, count: int) -> None:
        self.ids: list[Ids] = [np.empty(0, np.int32) for _ in range(count)]
        self._stale: set[int] = set()
        self._keys_skcd: dict[int, Tensor] = {}
        self._values_skcd: dict[int, Tensor] = {}
        self._capacity = 0

    def forget(self, busy: Sequence[int]) -> None:
        """Share nothing that older weights computed: empty all slots but those in use, and never copy from those."""
        self._stale = set(busy)
        for slot in set(range(len(self.ids))) - self._stale:
            self.ids[slot] = np.empty(0, np.int32)

    def longest_prefix(self, tokens: Ids) -> tuple[int, int]:
        """(slot, length) of the longest common prefix of `tokens` with what a slot holds."""
        lengths = [0 if i in self._stale else common_prefix(tokens, ids) for i, ids in enumerate(self.ids)]
        best = int(np.argmax(lengths))
        return best, lengths[best]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make `target` hold the first `length` tokens of `source`."""
        self.ids[target] = self.ids[source][:length]
        self._stale.discard(target)
        if source == target:
            return
        for buffer in (*self._keys_skcd.values(), *self._values_skcd.values()):
            buffer[target, :, :length] = buffer[source, :, :length]

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens in every slot."""
        if capacity <= self._capacity:
            return
        self._capacity = max(capacity, min(2 * self._capacity, capacity + 512), 64)
        for buffers in (self._keys_skcd, self._values_skcd):
            for layer, old in buffers.items():
                buffers[layer] = old.new_empty((*old.shape[:2], self._capacity, old.shape[3]))
                buffers[layer][:, :, : old.shape[2]] = old

    def write(self, layer: int, slot: int, start: int, key_knd: Tensor, value_knd: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values from position `start` on; gives all of the slot's so far, [K, start+n, D] each."""
        if layer not in self._keys_skcd:
            heads, _, size = key_knd.shape
            for buffers in (self._keys_skcd, self._values_skcd):
                buffers[layer] = key_knd.new_empty((len(self.ids), heads, self._capacity, size))
        stop = start + key_knd.shape[1]
        keys, values = self._keys_skcd[layer][slot], self._values_skcd[layer][slot]
        keys[:, start:stop] = key_knd
        values[:, start:stop] = value_knd
        return keys[:, :stop], values[:, :stop]


def common_prefix(left: Ids, right: Ids) -> int:
    """How many leading tokens are equal."""
    n = min(len(left), len(right))
    differs = left[:n] != right[:n]
    return int(differs.argmax()) if differs.any() else n


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive new tokens of one slot."""

    slot: int
    start: int
    """How many tokens the slot holds already."""
    ids: Ids


class CachedSegments:
    """Attention plan of a tick: each segment sees its slot's past and, causally, itself."""

    def __init__(self, slots: KVSlots, segments: Sequence[Segment]) -> None:
        self._slots = slots
        self._segments = segments

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Write the new keys and values into their slots and attend to all that the slots hold."""
        heads, _, size = query.shape
        kv_heads = key.shape[0]
        out = torch.empty_like(query)
        at = 0
        for segment in self._segments:
            rows = slice(at, at + len(segment.ids))
            at = rows.stop
            keys, values = self._slots.write(layer, segment.slot, segment.start, key[:, rows], value[:, rows])
            # the query heads of one key/value head form its query rows: grouped-query attention without copies
            q = query[:, rows].reshape(kv_heads, -1, size)
            mask = _causal_mask(heads // kv_heads, len(segment.ids), keys.shape[1])
            attended = scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask, scale=scale)
            out[:, rows] = attended.reshape(heads, -1, size)
        return out


def _causal_mask(repeats: int, new: int, total: int) -> Tensor | None:
    """Bool [repeats*new, total]: new token i sees keys up to total-new+i. A single token sees all."""
    if new == 1:
        return None
    return torch.ones(new, total, dtype=torch.bool).tril(total - new).repeat(repeats, 1)
