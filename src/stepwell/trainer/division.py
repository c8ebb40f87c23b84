"""Parts of a tree divided over the ranks of a learner, so that all make equally many passes and wait little.

Sharded ranks gather weights together in every pass, so a round of passes, one on each rank, takes as long as its
largest part. Rounds of parts of like sizes are the shortest; a rank for which no part is left makes an empty pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from stepwell.prefix_tree.pack import Merging, Packing, Part, pack
from stepwell.prefix_tree.tree import separate
from stepwell.types import Ids

EMPTY: Final = Part((), separate([np.zeros(1, np.int32)]))
"""What a rank without work computes: one token, which nobody reads."""
_SLACK: Final = (1.0, 1.15, 1.5)
"""Budgets that are tried, in shares of what each rank has in a round if nothing is lost: whole rows do not come out
even, and every cut costs what its two sides have in common."""


@dataclass(frozen=True)
class Division:
    """Which parts each of `count` ranks computes, round after round."""

    packing: Packing
    count: int

    @cached_property
    def rounds(self) -> tuple[tuple[Part, ...], ...]:
        """One part for each rank in every round, `EMPTY` where there is none. Alone: as they were packed."""
        parts = self.packing.parts
        if self.count == 1:
            return tuple((part,) for part in parts)
        largest_first = sorted(parts, key=_tokens, reverse=True)
        rounds = [largest_first[i : i + self.count] for i in range(0, len(parts), self.count)]
        full = [parts + [EMPTY] * (self.count - len(parts)) for parts in rounds]
        # back and forth, so that no rank has the largest of every round
        return tuple(tuple(parts[::-1] if number % 2 else parts) for number, parts in enumerate(full))

    @property
    def cost(self) -> int:
        """Tokens that the ranks wait for, one round after the other."""
        return sum(max(map(_tokens, parts)) for parts in self.rounds)


def divide(rows: Sequence[Ids], budget: int, merging: Merging, count: int) -> Division:
    """Rows as parts of at most `budget` tokens (see `pack`), each on one of `count` ranks.

    Where it is quicker, parts are smaller than they have to be, so that no rank is without work. The same rows give
    the same division everywhere, so ranks need not tell each other.
    """
    fewest = Division(pack(rows, budget, merging), count)
    if count == 1 or not rows:
        return fewest
    share = fewest.packing.tokens / (len(fewest.rounds) * count)
    budgets = {min(budget, max(1, int(share * slack) + 1)) for slack in _SLACK} - {budget}
    others = [Division(pack(rows, smaller, merging), count) for smaller in sorted(budgets)]
    return min([fewest, *others], key=lambda division: (division.cost, len(division.rounds)))


def _tokens(part: Part) -> int:
    return len(part.tree.ids)
