"""The prefix tree of a group's rows as a picture: one bar per segment, at its depth, as wide as it has tokens.

Markup by hand, as in `tokens`: a group has hundreds of segments. It holds numbers alone, no stored text.
"""

from dataclasses import dataclass
from typing import Final

from stepwell.pool.base import Pool
from stepwell.prefix_tree.pack import MICRO_BATCH_TOKENS
from stepwell.prefix_tree.savings import Savings, savings, sharing, trained_rows
from stepwell.prefix_tree.tree import PrefixTree, merged
from stepwell.types import Trajectory

_LANE: Final = 18
"""Pixels of a lane's height, where there are few."""
_TALLEST: Final = 360
"""Pixels of a picture, unless its lanes would be less than one."""
_FAINTEST: Final = 0.25


@dataclass(frozen=True, slots=True)
class Bar:
    """One segment."""

    depth: int
    """Position of its first token in the rows that go through it."""
    tokens: int
    rows: int
    """How many go through it or end in it."""
    lane: int
    """The first of the lanes that it takes, from the top; each leaf has one."""
    lanes: int
    """Leaves that follow it; a leaf has itself."""


@dataclass(frozen=True, slots=True)
class GroupTree:
    """What merging saves in a group, and the tree of its rows."""

    trajectories: int
    saved: Savings
    bars: tuple[Bar, ...]
    """In pre-order."""


def read_tree(pool: Pool, trajectory: Trajectory) -> GroupTree:
    """Of all trajectories of its group, or of itself alone. Raises NotFound and PoolError."""
    group_id = trajectory.info.group_id
    members = (trajectory,) if group_id is None else pool.group(group_id).trajectories
    rows = trained_rows(members)
    return GroupTree(len(members), savings(rows, MICRO_BATCH_TOKENS), tuple(_bars(merged(rows))))


def _bars(tree: PrefixTree) -> list[Bar]:
    leaves = [int(segment.stop == segment.end) for segment in tree.segments]
    lanes = list(leaves)
    for number, segment in reversed(list(enumerate(tree.segments))):
        if segment.parent >= 0:
            lanes[segment.parent] += lanes[number]
    bars, lane = [], 0
    for segment, rows, leaf, taken in zip(tree.segments, sharing(tree), leaves, lanes, strict=True):
        bars.append(Bar(segment.depth, segment.stop - segment.start, rows, lane, taken))
        lane += leaf
    return bars


def tree_html(tree: GroupTree) -> str:
    """The picture; the title of a bar says how many rows go through it. Empty without rows."""
    if not tree.bars:
        return ""
    longest = max(bar.depth + bar.tokens for bar in tree.bars)
    lanes = max(bar.lane + bar.lanes for bar in tree.bars)
    height = max(1, min(_LANE, _TALLEST // lanes))
    bars = "".join(_bar_html(bar, longest, height, tree.saved.rows) for bar in tree.bars)
    return f'<div style="position: relative; width: 100%; height: {lanes * height}px">{bars}</div>'


def _bar_html(bar: Bar, longest: int, height: int, rows: int) -> str:
    strength = _FAINTEST + (1 - _FAINTEST) * bar.rows / rows
    place = f"left: {bar.depth / longest:.4%}; width: {bar.tokens / longest:.4%}"
    place += f"; top: {bar.lane * height}px; height: {bar.lanes * height}px"
    title = f"{bar.tokens:,} tokens from position {bar.depth:,}, in {bar.rows:,} of {rows:,} rows"
    look = f"background: rgba(37, 99, 235, {strength:.2f}); border: 1px solid rgba(128, 128, 128, 0.5)"
    return f'<div title="{title}" style="position: absolute; box-sizing: border-box; {place}; {look}"></div>'
