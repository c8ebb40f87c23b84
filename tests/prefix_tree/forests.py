"""Rows that share much, as Hypothesis draws them, and what a tree of them is by definition."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from stepwell.prefix_tree.tree import PrefixTree
from stepwell.types import Ids


def ids(values: Sequence[int]) -> Ids:
    return np.array(values, np.int32)


@st.composite
def forests(draw: st.DrawFn, most: int = 8, longest: int = 12, alphabet: int = 2) -> list[Ids]:
    """Up to `most` rows of up to `longest` tokens in 1..alphabet: duplicates, prefixes, branches, strangers.

    Each row goes on from a beginning of an earlier one, or from nothing.
    """
    rows: list[list[int]] = []
    for _ in range(draw(st.integers(1, most))):
        before = draw(st.sampled_from([[], *rows]))
        kept = before[: draw(st.integers(0, len(before)))]
        room = longest - len(kept)
        new = draw(st.lists(st.integers(1, alphabet), min_size=0 if kept else 1, max_size=room))
        rows.append(kept + new)
    return [ids(row) for row in rows]


def distinct_prefixes(rows: Sequence[Ids]) -> int:
    """How many tokens a tree of the rows has: the nodes of a trie."""
    return len({tuple(row[: n + 1].tolist()) for row in rows for n in range(len(row))})


def paths(tree: PrefixTree) -> list[list[int]]:
    """Of each token, the places that one goes through from its row's beginning to it, by walking up the segments."""
    found = []
    for segment in tree.segments:
        above = segment
        before: list[int] = []
        while above.parent != -1:
            above = tree.segments[above.parent]
            before = [*range(above.start, above.stop), *before]
        found += [[*before, *range(segment.start, place + 1)] for place in range(segment.start, segment.stop)]
    return found
