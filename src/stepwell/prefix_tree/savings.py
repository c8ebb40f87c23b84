"""What merging saves, for people to see before they train: the same packing that the trainer uses."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepwell.prefix_tree.pack import Merging, pack
from stepwell.prefix_tree.tree import PrefixTree
from stepwell.types import Ids, Trajectory


@dataclass(frozen=True, slots=True)
class Savings:
    """Tokens of some rows."""

    rows: int
    flat_tokens: int
    """Of all rows."""
    tokens: int
    """That training computes of them."""

    @property
    def ratio(self) -> float:
        """Computed for each of the rows' tokens; 1: nothing is saved."""
        return self.tokens / self.flat_tokens if self.flat_tokens else 1.0

    def __add__(self, other: "Savings") -> "Savings":
        """Of both, each packed by itself."""
        return Savings(self.rows + other.rows, self.flat_tokens + other.flat_tokens, self.tokens + other.tokens)


def trained_rows(trajectories: Iterable[Trajectory]) -> list[Ids]:
    """The rows that training packs of these: one for each trainable step, in order."""
    return [step.token_ids for trajectory in trajectories for step in trajectory.steps if step.trainable]


def savings(rows: Sequence[Ids], budget: int, merging: Merging = "auto") -> Savings:
    """What an update on `rows` computes with `budget` tokens to a micro-batch."""
    packing = pack(rows, budget, merging)
    return Savings(len(rows), packing.flat_tokens, packing.tokens)


def sharing(tree: PrefixTree) -> list[int]:
    """How many rows go through each segment, or end in it: [S]."""
    counts = [0] * len(tree.segments)
    for leaf in tree.leaves:
        counts[leaf] += 1
    for number, segment in reversed(list(enumerate(tree.segments))):
        if segment.parent >= 0:
            counts[segment.parent] += counts[number]
    return counts
