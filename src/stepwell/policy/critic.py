"""The critic: a value head on the policy's own states, or on those of a model of its own.

Shape letters: N packed tokens, M selected positions, E hidden size.
"""

import copy
from typing import Any, Literal

from torch import Tensor, nn

from stepwell.policy.attention import AttentionPlan, at_least_single

CriticKind = Literal["head", "shared", "model"]


class Critic(nn.Module):
    """Estimates the value of a state. Values start at 0, so that the first advantages are plain returns."""

    def __init__(self, kind: CriticKind, backbone: Any, hidden: int, size: int) -> None:
        """Begin with nothing learnt; `size` are the head's hidden units.

        `head` reads the policy's states and leaves them alone; through `shared` its gradient moves the policy too;
        `model` has a copy of the policy's `backbone` to itself, which costs as much again.
        """
        super().__init__()
        self.kind = kind
        self.head = _head(hidden, size)
        self.trunk: Any = copy.deepcopy(backbone).requires_grad_(True) if kind == "model" else None

    def states(self, hidden_ne: Tensor | None, ids_n: Tensor, positions_n: Tensor, plan: AttentionPlan) -> Tensor:
        """What the head reads, [N, E]: the policy's `hidden_ne`, or the states of the critic's own model."""
        if self.trunk is not None:
            out = self.trunk(input_ids=ids_n[None], position_ids=positions_n[None], use_cache=False, plan=plan)
            states: Tensor = out.last_hidden_state[0]
            return states
        if hidden_ne is None:
            raise TypeError("a critic without a model of its own reads the policy's states")
        return hidden_ne if self.kind == "shared" else hidden_ne.detach()

    def forward(self, states_me: Tensor) -> Tensor:
        """Values [M] of states [M, E]."""
        values: Tensor = self.head(at_least_single(states_me)).squeeze(-1)
        return values


def _head(hidden: int, size: int) -> nn.Module:
    last = nn.Linear(size, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.LayerNorm(hidden, elementwise_affine=False), nn.Linear(hidden, size), nn.GELU(), last)
