"""The prefix tree of some rows of token ids, laid out so that a model can evaluate it as one sequence.

Rows agree up to some token and then part. A tree keeps each stretch of tokens that the same rows go through once, as a
*segment*. Segments stand in pre-order: what follows a segment stands right behind it, its *subtree*, so "who continues
this token" is one interval, and a token sees exactly those before it whose subtree it lies in.

Shape letters: R rows, S segments, N tokens of the tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from stepwell.types import Ids

Places = npt.NDArray[np.int64]
"""Indices of tokens in a tree, or counts of them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of a tree that the same rows go through."""

    start: int
    """Place of its first token in the tree."""
    stop: int
    """Place after its last token, where its subtree begins."""
    end: int
    """Place after its subtree."""
    depth: int
    """Position of its first token in the rows that go through it."""
    parent: int
    """The segment that it continues; -1: none."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """Rows, merged; a forest where some differ in their first token. Made by `merged` or `separate`."""

    ids: Ids
    """int32 [N]: the tokens, in pre-order."""
    segments: tuple[Segment, ...]
    """[S], in pre-order; none is empty."""
    leaves: tuple[int, ...]
    """[R]: the segment that each row ends in, maybe before the segment's own end."""
    lengths: tuple[int, ...]
    """[R]: tokens of each row."""

    @property
    def positions(self) -> Places:
        """[N]: position of each token in the rows that go through it: its depth, not its place."""
        parts = [np.arange(s.depth, s.depth + s.stop - s.start) for s in self.segments]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    @property
    def pairs(self) -> int:
        """How many pairs of tokens see each other, or stand in segments of which one sees the other."""
        own = sum((s.stop - s.start) * (s.stop - s.start + 1) // 2 for s in self.segments)
        return own + sum((s.stop - s.start) * (s.end - s.stop) for s in self.segments)

    @property
    def ends(self) -> Places:
        """[N]: the place after the subtree of each token's segment: token i sees token j iff j <= i < ends[j]."""
        own = [segment.stop - segment.start for segment in self.segments]
        return np.repeat(np.array([segment.end for segment in self.segments], np.int64), own)

    def places(self, row: int, start: int = 0, stop: int | None = None) -> Places:
        """Where tokens [start, stop) of a row stand in the tree: its path, int64 [stop - start]."""
        stop = self.lengths[row] if stop is None else stop
        if not 0 <= start <= stop <= self.lengths[row]:
            raise IndexError(f"tokens {start}..{stop} of a row of {self.lengths[row]}")
        parts: list[Places] = []
        at = self.leaves[row]
        while start < stop:
            segment = self.segments[at]
            first = max(start, segment.depth)
            if first < stop:
                shift = segment.start - segment.depth
                parts.append(np.arange(first + shift, stop + shift))
                stop = first
            at = segment.parent
        return np.concatenate(parts[::-1]) if parts else np.empty(0, np.int64)

    def row(self, row: int) -> Ids:
        """The tokens of a row, int32."""
        return self.ids[self.places(row)]


def common_prefix(left: Ids, right: Ids) -> int:
    """How many leading tokens are equal."""
    n = min(len(left), len(right))
    differs = left[:n] != right[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def separate(rows: Sequence[Ids]) -> PrefixTree:
    """The rows end to end with nothing merged. Empty rows are refused as by `merged`."""
    _refuse_empty(rows)
    stops = list(accumulate(map(len, rows)))
    segments = [Segment(stop - len(row), stop, stop, 0, -1) for row, stop in zip(rows, stops, strict=True)]
    return PrefixTree(_concatenated(rows), tuple(segments), tuple(range(len(rows))), tuple(map(len, rows)))


def merged(rows: Sequence[Ids]) -> PrefixTree:
    """Merge rows (int32, at least one token each) where they are equal from their start.

    Time is linear in the number of tokens: each is compared once. Segments that are continued stand behind their
    siblings that are not, and those in order of length: neighbours of equal length can be computed as one batch.

    Raises:
        ValueError: a row is empty.
    """
    _refuse_empty(rows)
    trie = _Trie(rows)
    for number in range(len(rows)):
        trie.insert(number)
    return trie.laid_out()


def _refuse_empty(rows: Sequence[Ids]) -> None:
    if not all(map(len, rows)):
        raise ValueError("a row without tokens has no place in a prefix tree")


def _concatenated(parts: Sequence[Ids]) -> Ids:
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class _Node:
    """Tokens [start, stop) of a row, which all rows through this node share."""

    row: int
    start: int
    stop: int
    parent: "_Node | None" = None
    children: "dict[int, _Node]" = field(default_factory=dict)
    number: int = -1
    """Its segment, once laid out."""


class _Trie:
    """A trie with compressed paths. A row may end within a node: only rows that part make another."""

    def __init__(self, rows: Sequence[Ids]) -> None:
        self._rows = rows
        self._root = _Node(0, 0, 0)

    def insert(self, number: int) -> None:
        """Add a row."""
        row, at, node = self._rows[number], 0, self._root
        while at < len(row):
            child = node.children.get(int(row[at]))
            if child is None:
                self._add(node, number, at)
                return
            same = 1  # of a single token, which it was found by
            if child.stop - child.start > 1:
                same = common_prefix(self._rows[child.row][child.start : child.stop], row[at:])
            at += same
            if at < len(row) and child.start + same < child.stop:
                child = self._split(child, same)
            node = child

    def _add(self, node: _Node, number: int, at: int) -> None:
        stop = len(self._rows[number])
        if not node.children and node is not self._root:  # all rows through it end here: it just becomes longer
            node.row, node.stop = number, stop
            return
        node.children[int(self._rows[number][at])] = _Node(number, at, stop, node)

    def _split(self, lower: _Node, length: int) -> _Node:
        """Make the first `length` tokens of a node its parent."""
        row, cut = self._rows[lower.row], lower.start + length
        upper = _Node(lower.row, lower.start, cut, lower.parent, {int(row[cut]): lower})
        assert lower.parent is not None  # the root has no tokens to split
        lower.parent.children[int(row[lower.start])] = upper
        lower.start, lower.parent = cut, upper
        return upper

    def laid_out(self) -> PrefixTree:
        """All rows that were added."""
        order = self._pre_order()
        starts = [0, *accumulate(node.stop - node.start for node in order)]
        last = list(range(1, len(order) + 1))  # after the subtree of each
        for number in reversed(range(len(order))):
            parent = order[number].parent
            if parent is not self._root and parent is not None:
                last[parent.number] = max(last[parent.number], last[number])
        segments = tuple(
            Segment(starts[number], starts[number + 1], starts[last[number]], node.start, node.parent.number)
            for number, node in enumerate(order)
            if node.parent is not None
        )
        ids = _concatenated([self._rows[node.row][node.start : node.stop] for node in order])
        leaves = tuple(self._holder(row).number for row in self._rows)
        return PrefixTree(ids, segments, leaves, tuple(map(len, self._rows)))

    def _holder(self, row: Ids) -> _Node:
        """The node that a row ends in; from the root, as many rows may end far above what was made of their last."""
        node = self._root
        while node.stop < len(row):
            node = node.children[int(row[node.stop])]
        return node

    def _pre_order(self) -> list[_Node]:
        """All nodes but the root, numbered."""
        order: list[_Node] = []
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node is not self._root:
                node.number = len(order)
                order.append(node)
            stack += sorted(node.children.values(), key=_leaves_first, reverse=True)
        return order


def _leaves_first(node: _Node) -> tuple[bool, int]:
    return bool(node.children), node.stop - node.start
