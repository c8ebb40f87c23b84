"""What merging saves, for people to see before they train: the same packing that the trainer uses."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.prefix_tree.pack import Merging, pack
from stepwell.types import Ids


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
        return self.tokens / max(self.flat_tokens, 1)


def savings(rows: Sequence[Ids], budget: int, merging: Merging = "auto") -> Savings:
    """What an update on `rows` computes with `budget` tokens to a micro-batch."""
    packing = pack(rows, budget, merging)
    return Savings(len(rows), packing.flat_tokens, packing.tokens)
