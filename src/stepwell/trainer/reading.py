"""Where a tree's logits are needed: rows that share a place read it once, unless they do so at different temperatures.

Shape letters: M tokens that are predicted, U places that are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.prefix_tree.tree import Places

_READ = np.dtype([("place", np.int64), ("temperature", np.float32)])
_NONE = np.empty(0, _READ)


@dataclass(frozen=True, slots=True)
class Reading:
    """Places of a tree, each with the temperature that divides its logits."""

    places: Tensor
    """int64 [U], each once for every temperature."""
    temperatures: Tensor
    """float32 [U]."""
    of_token: Tensor
    """int64 [M]: which of the U predicts each token."""

    @classmethod
    def of(cls, rows: Sequence[Places], temperatures: Sequence[float]) -> "Reading":
        """What rows read: the places before their tokens, end to end, and one temperature per row."""
        wanted = np.concatenate([_NONE, *(_marked(at, t) for at, t in zip(rows, temperatures, strict=True))])
        found, of_token = np.unique(wanted, return_inverse=True)
        parts = (found["place"].copy(), found["temperature"].copy(), of_token.astype(np.int64))
        return cls(*map(torch.from_numpy, parts))


def _marked(places: Places, temperature: float) -> np.ndarray:
    marked = np.empty(len(places), _READ)
    marked["place"], marked["temperature"] = places, temperature
    return marked
