"""Log-probabilities of responses under the policy as it is, and the critic's values, without gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stepwell.policy.model import Policy
from stepwell.policy.tree_attention import laid_out
from stepwell.prefix_tree.pack import Merging, pack
from stepwell.prefix_tree.tree import PrefixTree
from stepwell.trainer.reading import Reading
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


@torch.no_grad()
def response_logprobs(
    policy: Policy, rows: Sequence[Scored], token_budget: int, merging: Merging = "auto"
) -> list[Floats]:
    """Log-probability of each response token, nats, float32 [R] per row; passes have at most `token_budget` tokens."""
    found: list[Floats] = [NO_FLOATS] * len(rows)
    whole = [np.concatenate([row.prompt_ids, row.response_ids]) for row in rows]
    for part in pack(whole, token_budget, merging).parts:
        scores = _one_pass(policy, part.tree, [rows[i] for i in part.rows])
        for i, logprobs in zip(part.rows, scores, strict=True):
            found[i] = logprobs
    return found


def _one_pass(policy: Policy, tree: PrefixTree, rows: Sequence[Scored]) -> list[Floats]:
    hidden = policy.hidden(*laid_out(tree))
    before = [len(row.prompt_ids) - 1 for row in rows]
    places = [tree.places(i, b, b + len(row.response_ids)) for i, (b, row) in enumerate(zip(before, rows, strict=True))]
    reading = Reading.of(places, [row.temperature for row in rows])
    targets = torch.from_numpy(np.concatenate([row.response_ids for row in rows]).astype(np.int64))
    logp = (policy.logits(hidden[reading.places]) / reading.temperatures[:, None]).log_softmax(-1)
    chosen = logp[reading.of_token, targets].numpy()
    return np.split(chosen, np.cumsum([len(r.response_ids) for r in rows])[:-1])


@torch.no_grad()
def state_values(
    policy: Policy, rows: Sequence[Ids], starts: Sequence[int], token_budget: int, merging: Merging = "auto"
) -> list[Floats]:
    """The critic's values after each token of a row from place `starts` on: float32 [len(row) - start] per row."""
    found: list[Floats] = [NO_FLOATS] * len(rows)
    for part in pack(rows, token_budget, merging).parts:
        packed = laid_out(part.tree)
        states = policy.critic_states(None if policy.own_critic else policy.hidden(*packed), *packed)
        values = policy.values(states).numpy()
        for place, i in enumerate(part.rows):
            found[i] = values[part.tree.places(place, starts[i])]
    return found
