"""Supervised warm-up: a policy that never acts validly earns nothing to learn from, so it sees some examples first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepwell.errors import InvalidRecord
from stepwell.policy.model import Policy
from stepwell.policy.tree_attention import laid_out
from stepwell.prefix_tree.tree import merged
from stepwell.trainer.optimizer import clip_gradient
from stepwell.types import Ids


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation to imitate."""

    ids: Ids
    """int32 [L]."""
    mask: npt.NDArray[np.bool_]
    """[L]: True at the tokens that the policy is to produce; never at the first."""


def supervised_update(
    policy: Policy, optimizer: torch.optim.Optimizer, rows: Sequence[Demonstration], grad_clip: float = 1.0
) -> float:
    """One optimiser step of cross-entropy on the masked tokens; gives the mean loss in nats per token.

    The policy's version does not change: warm-up comes before the first version that is served.

    Raises:
        InvalidRecord: no token is to be produced.
    """
    if not any(row.mask.any() for row in rows):
        raise InvalidRecord("none of the demonstrations has a token to imitate: its mask is empty")
    tree = merged([row.ids for row in rows])
    places = [(tree.places(i), np.flatnonzero(row.mask)) for i, row in enumerate(rows)]
    predicting = torch.from_numpy(np.concatenate([at[produced - 1] for at, produced in places]))
    targets = torch.from_numpy(np.concatenate([row.ids[row.mask] for row in rows]).astype(np.int64))

    def cross_entropy() -> Tensor:
        hidden = policy.hidden(*laid_out(tree))
        return torch.nn.functional.cross_entropy(policy.logits(hidden[predicting]), targets)

    optimizer.zero_grad(set_to_none=True)
    loss = policy.evaluated(cross_entropy)  # of ranks, each computes the same: their mean is that, too
    loss.backward()
    clip_gradient(policy.trainable_parameters(), grad_clip)
    with policy.writing():
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()
