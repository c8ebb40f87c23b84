"""Last hidden states at the end of many prompts, each shared prefix computed once.

Prompts of one batch repeat each other: siblings start alike and every step's prompt contains the step before it. Taken
in lexicographic order, each prompt continues some prefix of the one before, so a single cache that is cut back to that
prefix walks their prefix tree depth first.

Shape letters: E hidden size.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stepwell.policy.kv_cache import CachedSegments, KVSlots
from stepwell.policy.model import Policy
from stepwell.types import Ids


@torch.no_grad()
def prompt_hidden(policy: Policy, prompts: Sequence[Ids]) -> Tensor:
    """Hidden state of the last token of each prompt: float32 [len(prompts), E], in the order given."""
    slots = KVSlots(1)
    hidden: dict[bytes, Tensor] = {}
    for prompt in sorted(prompts, key=lambda ids: ids.astype(">i4").tobytes()):
        key = prompt.tobytes()
        if key not in hidden:
            hidden[key] = _continue(policy, slots, prompt)
    return torch.stack([hidden[prompt.tobytes()] for prompt in prompts])


def _continue(policy: Policy, slots: KVSlots, prompt: Ids) -> Tensor:
    _, start = slots.longest_prefix(prompt[:-1])  # the last token must run: its state is asked for
    slots.copy_prefix(0, 0, start)
    segment = slots.extend(0, prompt[start:])
    ids = torch.from_numpy(segment.ids.astype(np.int64))
    return policy.hidden(ids, torch.arange(start, len(prompt)), CachedSegments(slots, [segment]))[-1]
