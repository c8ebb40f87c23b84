"""Rows cut into parts that fit a budget of tokens, each with its prefix tree.

A part costs the tokens of its merged rows. Rows are taken in the order of the whole tree, where each shares the most
with its neighbours; a cut between two of them costs what they share, which then stands in both parts. The cuts are
those that cost least, so trees are kept whole where they fit, and one that does not is split at its cheapest places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from stepwell.prefix_tree.tree import PrefixTree, common_prefix, merged, separate
from stepwell.types import Ids

Merging = Literal["auto", "on", "off"]
"""Whether shared prefixes are merged: where it saves enough, always, or never."""

WORTHWHILE: Final = 0.95
"""Merging is on by itself where the tree has at most this share of the rows' tokens."""
MICRO_BATCH_TOKENS: Final = 4096
"""The budget of a trainer that was told no other."""
_PART: Final = 16
"""Tokens that a pass of its own is worth: of cuts that cost about the same, the fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows that are evaluated together."""

    rows: tuple[int, ...]
    """Which of the rows that were packed, in the order of the tree's own."""
    tree: PrefixTree


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """How some rows are evaluated."""

    parts: tuple[Part, ...]
    flat_tokens: int
    """Of all rows."""

    @property
    def tokens(self) -> int:
        """That are computed, over all parts."""
        return sum(len(part.tree.ids) for part in self.parts)

    @property
    def ratio(self) -> float:
        """Tokens that are computed, for each of the rows'; 1: nothing saved."""
        return self.tokens / self.flat_tokens if self.flat_tokens else 1.0


def pack(rows: Sequence[Ids], budget: int, merging: Merging = "auto") -> Packing:
    """Parts of at most `budget` tokens each (a longer row gets one of its own), every row in exactly one.

    Args:
        rows: int32, at least one token each.
        budget: Tokens, after merging.
        merging: "auto" leaves rows apart where the tree would have more than `WORTHWHILE` of their tokens.

    Raises:
        ValueError: a row is empty.
    """
    flat = sum(map(len, rows))
    if not rows:
        return Packing((), flat)
    if merging != "off":
        whole = merged(rows)
        if merging == "on" or len(whole.ids) <= WORTHWHILE * flat:
            return Packing(tuple(_merged_parts(rows, whole, budget)), flat)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # equal lengths are computed as one batch
    cut = _cheapest_cuts([len(rows[i]) for i in order], [0] * len(rows), budget)
    parts = [tuple(order[start:stop]) for start, stop in cut]
    return Packing(tuple(Part(part, separate([rows[i] for i in part])) for part in parts), flat)


def _merged_parts(rows: Sequence[Ids], whole: PrefixTree, budget: int) -> list[Part]:
    order = sorted(range(len(rows)), key=lambda i: int(whole.places(i, len(rows[i]) - 1)[0]))
    if len(whole.ids) <= budget:
        return [Part(tuple(range(len(rows))), whole)]
    shared = [0, *(common_prefix(rows[a], rows[b]) for a, b in pairwise(order))]
    cuts = _cheapest_cuts([len(rows[i]) for i in order], shared, budget)
    parts = [tuple(order[start:stop]) for start, stop in cuts]
    return [Part(part, merged([rows[i] for i in part])) for part in parts]


def _cheapest_cuts(lengths: Sequence[int], shared: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """[start, stop) of each part of a sequence of rows, such that the cuts cost least.

    `shared[i]` is what row i has in common with the one before it. By dynamic programming over where the last part
    begins: of all divisions into neighbours that fit, the best.
    """
    count = len(lengths)
    common = np.array(shared, np.int64)
    begun = np.concatenate([[0], np.cumsum(np.array(lengths, np.int64) - common)])
    cost = np.zeros(count + 1, np.int64)
    begins = np.zeros(count + 1, np.int64)
    first = 0  # the earliest row at which a part that ends at `stop` may begin; it never moves back
    for stop in range(1, count + 1):
        while first < stop - 1 and begun[stop] - begun[first] + common[first] > budget:
            first += 1
        totals = cost[first:stop] + common[first:stop]
        best = int(totals.argmin())
        begins[stop], cost[stop] = first + best, totals[best] + _PART
    parts, stop = [], count
    while stop:
        parts.append((int(begins[stop]), stop))
        stop = int(begins[stop])
    return parts[::-1]
