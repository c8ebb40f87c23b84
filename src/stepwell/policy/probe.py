"""A few tokens that tell whether somebody else has a policy's weights: reloads can be silently wrong."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from stepwell.policy.model import Policy
from stepwell.policy.tree_attention import laid_out
from stepwell.prefix_tree.tree import separate

_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class Probe:
    """What a policy makes of a few tokens."""

    prompt_ids: list[int]
    token: int
    """The likeliest one after them."""
    logprob: float
    """Of that token, in nats, at temperature 1."""


@torch.no_grad()
def probe(policy: Policy) -> Probe:
    """Of a prompt whose tokens are spread over the vocabulary."""
    last = policy.vocabulary_size - 1
    row = np.linspace(0, last, min(_LENGTH, policy.context_length - 1)).astype(np.int32)
    with policy.reading():
        hidden = policy.hidden(*laid_out(separate([row])))
        logprobs = policy.logits(hidden[-1:]).float().log_softmax(-1)[0]
    token = int(logprobs.argmax())
    return Probe(row.tolist(), token, float(logprobs[token]))
