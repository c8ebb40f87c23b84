"""Supervised warm-up: a policy that never acts validly earns nothing to learn from, so it sees some examples first."""

from collections.abc import Sequence

import numpy as np
import torch

from stepwell.policy.attention import PackedRows
from stepwell.policy.model import Policy
from stepwell.types import Ids


def supervised_update(
    policy: Policy, optimizer: torch.optim.Optimizer, rows: Sequence[tuple[Ids, Ids]], grad_clip: float = 1.0
) -> float:
    """One step of cross-entropy on the response tokens of (prompt_ids, response_ids) rows; gives the mean loss in nats.

    The policy's version does not change: warm-up comes before the first version that is served.
    """
    rows = sorted(rows, key=lambda row: len(row[0]) + len(row[1]))
    lengths = [len(prompt) + len(response) for prompt, response in rows]
    starts = np.cumsum([0, *lengths[:-1]])
    predicting = [np.arange(len(r)) + o + len(p) - 1 for (p, r), o in zip(rows, starts, strict=True)]
    ids = torch.from_numpy(np.concatenate([part for row in rows for part in row]).astype(np.int64))
    positions = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))
    hidden = policy.hidden(ids, positions, PackedRows(lengths))
    targets = torch.from_numpy(np.concatenate([response for _, response in rows]).astype(np.int64))
    logits = policy.logits(hidden[torch.from_numpy(np.concatenate(predicting))])
    loss = torch.nn.functional.cross_entropy(logits, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.trainable_parameters(), grad_clip)
    with policy.writing():
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()
