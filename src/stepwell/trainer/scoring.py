"""Log-probabilities of responses under the policy as it is, and the critic's values, without gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from stepwell.policy.model import Policy
from stepwell.policy.tree_attention import laid_out
from stepwell.prefix_tree.pack import Merging, Part
from stepwell.prefix_tree.tree import PrefixTree
from stepwell.trainer.division import Division, divide
from stepwell.trainer.reading import Reading
from stepwell.types import Floats, Ids, Sample


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
    whole = [np.concatenate([row.prompt_ids, row.response_ids]) for row in rows]

    def scores(part: Part) -> list[Floats]:
        return _one_pass(policy, part.tree, [rows[i] for i in part.rows])

    return _part_by_part(policy, divide(whole, token_budget, merging, policy.ranks.count), scores)


def _one_pass(policy: Policy, tree: PrefixTree, rows: Sequence[Scored]) -> list[Floats]:
    hidden = policy.hidden(*laid_out(tree))
    before = [len(row.prompt_ids) - 1 for row in rows]
    places = [tree.places(i, b, b + len(row.response_ids)) for i, (b, row) in enumerate(zip(before, rows, strict=True))]
    reading = Reading.of(places, [row.temperature for row in rows])
    responses = [row.response_ids for row in rows]
    targets = torch.from_numpy(np.concatenate(responses or [np.empty(0, np.int32)]).astype(np.int64))
    logp = (policy.logits(hidden[reading.places]) / reading.temperatures[:, None]).log_softmax(-1)
    chosen = logp[reading.of_token, targets].numpy()
    return np.split(chosen, np.cumsum(list(map(len, responses)))[:-1]) if rows else []


@torch.no_grad()
def state_values(
    policy: Policy, rows: Sequence[Ids], starts: Sequence[int], token_budget: int, merging: Merging = "auto"
) -> list[Floats]:
    """The critic's values after each token of a row from place `starts` on: float32 [len(row) - start] per row."""

    def values(part: Part) -> list[Floats]:
        packed = laid_out(part.tree)
        states = policy.critic_states(None if policy.own_critic else policy.hidden(*packed), *packed)
        found = policy.values(states).numpy()
        return [found[part.tree.places(place, starts[i])] for place, i in enumerate(part.rows)]

    return _part_by_part(policy, divide(rows, token_budget, merging, policy.ranks.count), values)


def _part_by_part(policy: Policy, division: Division, scores: Callable[[Part], list[Floats]]) -> list[Floats]:
    """Of every row, in their order: each rank computes its parts, and tells the others."""
    own: dict[int, Floats] = {}
    for part in (parts[policy.ranks.rank] for parts in division.rounds):
        own.update(zip(part.rows, policy.evaluated(partial(scores, part)), strict=True))
    every = {row: found for share in policy.ranks.exchanged(own) for row, found in share.items()}
    return [every[row] for row in range(len(every))]
