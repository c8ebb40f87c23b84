"""Log-probabilities of responses under the policy as it is, and the critic's values, without gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.policy.attention import PackedRows
from stepwell.policy.model import Policy
from stepwell.types import NO_FLOATS, Floats, Ids, Sample


@dataclass(frozen=True, slots=True)
class Scored:
    """A response after a prompt."""

    prompt_ids: Ids
    """int32 [P], P >= 1."""
    response_ids: Ids
    """int32 [R]."""
    temperature: float = 1.0
    """Divides the logits."""

    @classmethod
    def of(cls, sample: Sample) -> "Scored":
        """The response that a sample trains on."""
        cut = sample.prompt_length
        return cls(sample.token_ids[:cut], sample.token_ids[cut:], sample.temperature)


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows end to end, for one forward pass."""

    ids: Tensor
    """int64 [N]."""
    positions: Tensor
    """int64 [N], from 0 in each row."""
    plan: PackedRows
    starts: tuple[int, ...]
    """Where each row begins."""

    @classmethod
    def of(cls, rows: Sequence[Ids]) -> "Packed":
        """Pack `rows`, at least one."""
        lengths = [len(row) for row in rows]
        return cls(
            torch.from_numpy(np.concatenate(rows).astype(np.int64)),
            torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])),
            PackedRows(lengths),
            tuple(np.cumsum([0, *lengths[:-1]]).tolist()),
        )


def passes(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Which rows go together into passes of at most `budget` tokens: those of similar length; a longer one alone."""
    parts: list[list[int]] = []
    room = 0
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if lengths[i] > room:
            parts.append([])
            room = budget
        parts[-1].append(i)
        room -= lengths[i]
    return parts


@torch.no_grad()
def response_logprobs(policy: Policy, rows: Sequence[Scored], token_budget: int) -> list[Floats]:
    """Log-probability of each response token, nats, float32 [R] per row; passes have at most `token_budget` tokens."""
    found: list[Floats] = [NO_FLOATS] * len(rows)
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
    for part in passes(lengths, token_budget):
        for place, logprobs in zip(part, _one_pass(policy, [rows[i] for i in part]), strict=True):
            found[place] = logprobs
    return found


def _one_pass(policy: Policy, rows: Sequence[Scored]) -> list[Floats]:
    packed = Packed.of([np.concatenate([row.prompt_ids, row.response_ids]) for row in rows])
    hidden = policy.hidden(packed.ids, packed.positions, packed.plan)
    before = [start + len(row.prompt_ids) - 1 for row, start in zip(rows, packed.starts, strict=True)]
    places = [np.arange(at, at + len(row.response_ids)) for row, at in zip(rows, before, strict=True)]
    at = torch.from_numpy(np.concatenate(places))
    scale = torch.from_numpy(np.concatenate([np.full(len(r.response_ids), r.temperature, np.float32) for r in rows]))
    logp = (policy.logits(hidden[at]) / scale[:, None]).log_softmax(-1)
    chosen = logp.gather(1, packed.ids[at + 1][:, None]).squeeze(1).numpy()
    return np.split(chosen, np.cumsum([len(r.response_ids) for r in rows])[:-1])


@torch.no_grad()
def state_values(policy: Policy, rows: Sequence[Ids], starts: Sequence[int], token_budget: int) -> list[Floats]:
    """The critic's values after each token of a row from place `starts` on: float32 [len(row) - start] per row."""
    found: list[Floats] = [NO_FLOATS] * len(rows)
    for part in passes([len(row) for row in rows], token_budget):
        packed = Packed.of([rows[i] for i in part])
        hidden = None if policy.own_critic else policy.hidden(packed.ids, packed.positions, packed.plan)
        states = policy.critic_states(hidden, packed.ids, packed.positions, packed.plan)
        values = policy.values(states).numpy()
        for i, begin in zip(part, packed.starts, strict=True):
            found[i] = values[begin + starts[i] : begin + len(rows[i])]
    return found
