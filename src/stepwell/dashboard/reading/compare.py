"""Two trajectories side by side: which steps they have alike, and the first token in which others differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from stepwell.dashboard.reading.trajectory import Head, Parts, StepView, read_head, read_views
from stepwell.dashboard.tokens import Decode, Decoders
from stepwell.pool.base import Pool
from stepwell.types import Ids, Step

AT_ONCE: Final = 20
"""Pairs of steps that are read, and shown, at a time."""
_SCANNED: Final = 64
"""Steps of each that are looked through at a time for the first difference."""
BEFORE: Final = 24
"""Equal tokens that are shown before the first that differ."""
AFTER: Final = 48
"""Tokens that are shown from there on."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two steps part."""

    part: Literal["prompt", "response"]
    position: int
    """Of the first token that differs, within the part."""
    shared: str
    """Text of the tokens just before, which both have."""
    left: str
    """What goes on there; empty: that part has ended."""
    right: str


@dataclass(frozen=True, slots=True)
class Pair:
    """The steps that two trajectories have at one index."""

    index: int
    left: StepView | None
    right: StepView | None
    difference: Difference | None
    """None: the same tokens, or one of the steps is missing."""

    @property
    def alike(self) -> bool:
        """Whether both took the same step."""
        return self.left is not None and self.right is not None and self.difference is None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two trajectories."""

    left: Head
    right: Head
    indexes: tuple[int, ...]
    """Of the steps that at least one of them has, ascending."""
    rewards: Mapping[str, Parts]
    """Reward parts by step id, of both."""


def read_comparison(pool: Pool, left_id: str, right_id: str) -> Comparison:
    """What is known of both without reading tokens. Raises NotFound and PoolError."""
    left, right = read_head(pool, left_id), read_head(pool, right_id)
    indexes = sorted({step.index for head in (left, right) for step in head.steps})
    return Comparison(left, right, tuple(indexes), {**left.rewards(), **right.rewards()})


def read_pairs(pool: Pool, both: Comparison, start: int, decoders: Decoders) -> list[Pair]:
    """`AT_ONCE` pairs from the place `start` among the indexes on."""
    indexes = both.indexes[start : start + AT_ONCE]
    if not indexes:
        return []
    left, right = (_views(pool, head, indexes[0], indexes[-1]) for head in (both.left, both.right))
    return [_pair(index, left.get(index), right.get(index), decoders) for index in indexes]


def first_difference(pool: Pool, both: Comparison) -> int:
    """Place of the first index at which they differ, or one has no step; how many indexes there are if none."""
    for start in range(0, len(both.indexes), _SCANNED):
        indexes = both.indexes[start : start + _SCANNED]
        left, right = (_steps(pool, head, indexes[0], indexes[-1]) for head in (both.left, both.right))
        for place, index in enumerate(indexes, start):
            one, other = left.get(index), right.get(index)
            if one is None or other is None or difference(one, other) is not None:
                return place
    return len(both.indexes)


def difference(left: Step, right: Step, decode: Decode | None = None) -> Difference | None:
    """The first token of the prompts that differs, or else of the responses; None if all are the same."""
    for part, one, other in (
        ("prompt", left.prompt_ids, right.prompt_ids),
        ("response", left.response_ids, right.response_ids),
    ):
        if not np.array_equal(one, other):
            at = _first(one, other)
            after = slice(at, at + AFTER)
            shared = one[max(0, at - BEFORE) : at]
            texts = (_text(ids, decode) for ids in (shared, one[after], other[after]))
            return Difference("prompt" if part == "prompt" else "response", at, *texts)
    return None


def _pair(index: int, left: StepView | None, right: StepView | None, decoders: Decoders) -> Pair:
    if left is None or right is None:
        return Pair(index, left, right, None)
    return Pair(index, left, right, difference(left.step, right.step, decoders.get(left.step.model)))


def _views(pool: Pool, head: Head, first: int, last: int) -> dict[int, StepView]:
    views = read_views(pool, head, head.place_of(first), head.place_of(last + 1))
    return {view.step.index: view for view in views}


def _steps(pool: Pool, head: Head, first: int, last: int) -> dict[int, Step]:
    found = pool.steps(head.summary.info.id, first=first, limit=last - first + 1)
    return {step.index: step for step in found if step.index <= last}


def _first(one: Ids, other: Ids) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


def _text(ids: Ids, decode: Decode | None) -> str:
    return decode(ids) if decode else " ".join(f"⟨{token_id}⟩" for token_id in ids.tolist())
