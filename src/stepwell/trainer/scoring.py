"""Log-probabilities of responses under the policy as it is, without gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stepwell.policy.attention import PackedRows
from stepwell.policy.model import Policy
from stepwell.types import Floats, Ids


@dataclass(frozen=True, slots=True)
class Scored:
    """A response after a prompt."""

    prompt_ids: Ids
    """int32 [P], P >= 1."""
    response_ids: Ids
    """int32 [R]."""
    temperature: float = 1.0
    """Divides the logits."""


@torch.no_grad()
def response_logprobs(policy: Policy, rows: Sequence[Scored], token_budget: int) -> list[Floats]:
    """Log-probability of each response token, nats, float32 [R] per row; passes have at most `token_budget` tokens."""
    found: list[Floats] = [np.empty(0, np.float32)] * len(rows)
    for part in _passes(rows, token_budget):
        for place, logprobs in zip(part, _one_pass(policy, [rows[i] for i in part]), strict=True):
            found[place] = logprobs
    return found


def _passes(rows: Sequence[Scored], budget: int) -> list[list[int]]:
    """Rows of similar length together; a row over the budget alone."""
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
    parts: list[list[int]] = []
    room = 0
    for i in sorted(range(len(rows)), key=lengths.__getitem__, reverse=True):
        if lengths[i] > room:
            parts.append([])
            room = budget
        parts[-1].append(i)
        room -= lengths[i]
    return parts


def _one_pass(policy: Policy, rows: Sequence[Scored]) -> list[Floats]:
    ids = [np.concatenate([row.prompt_ids, row.response_ids]) for row in rows]
    lengths = [len(row) for row in ids]
    starts = np.cumsum([0, *lengths[:-1]])
    packed = torch.from_numpy(np.concatenate(ids).astype(np.int64))
    positions = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))
    hidden = policy.hidden(packed, positions, PackedRows(lengths))
    places = [np.arange(len(r.prompt_ids) - 1, n - 1) + o for r, n, o in zip(rows, lengths, starts, strict=True)]
    at = torch.from_numpy(np.concatenate(places))
    scale = torch.from_numpy(np.concatenate([np.full(len(r.response_ids), r.temperature, np.float32) for r in rows]))
    logp = (policy.logits(hidden[at]) / scale[:, None]).log_softmax(-1)
    chosen = logp.gather(1, packed[at + 1][:, None]).squeeze(1).numpy()
    return np.split(chosen, np.cumsum([len(r.response_ids) for r in rows])[:-1])
