"""Sharding a policy: each rank keeps its part of every parameter, and gathers a layer's while it is computed.

By torch's FSDP2. Its hooks sit on a module's forward pass, while a pass of ours calls several parts of the policy (the
layers, the head, the critic), and none where there is nothing to read. So what belongs to no layer is gathered by
one module around all of them, whose forward pass is whatever function it is given.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from stepwell.config import Config
from stepwell.policy.model import Policy
from stepwell.policy.ranks import Ranks

T = TypeVar("T")


class ShardingConfig(Config):
    """How several ranks train one policy. With one rank nothing of it applies."""

    reductions: Literal["float32", "bfloat16"] = "float32"
    """In which gradients are summed over ranks. In which they are computed: `policy.precision`; weights and what the
    optimiser keeps of them are float32 in any case."""


class _Pass(nn.Module):
    """All parameters; its forward pass is any part of an update's."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.model
        self.critic = policy.critic

    def forward(self, function: Callable[[], T]) -> T:
        return function()


def shard(policy: Policy, ranks: Ranks, config: ShardingConfig) -> None:
    """Leave each of `ranks` with its part of `policy`, as it is on the first of them.

    Layers are gathered in the precision in which they compute; the embedding, the output's head and the critic's, from
    and to which states of full precision go, as they are.
    """
    for parameter in (*policy.trainable_parameters(), *policy.critic_parameters()):
        ranks.copy_first(parameter.detach())  # what begins at random did so in each process by itself
    some = next(policy.model.parameters())
    mesh = init_device_mesh(some.device.type, (ranks.count,))
    sums = torch.bfloat16 if config.reductions == "bfloat16" else torch.promote_types(some.dtype, torch.float32)
    of_layers = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if policy.half else None, reduce_dtype=sums, cast_forward_inputs=False
    )
    for stack in policy.stacks:
        for layer in stack.layers:
            fully_shard(layer, mesh=mesh, mp_policy=of_layers)
    rest = MixedPrecisionPolicy(reduce_dtype=sums, cast_forward_inputs=False)
    everything: Any = fully_shard(_Pass(policy), mesh=mesh, mp_policy=rest)

    def evaluate(function: Callable[[], T]) -> T:
        result: T = everything(function)
        if not torch.is_grad_enabled():  # else the backward pass needs it, and lets go of it
            everything.reshard()
        return result

    policy.sharded_over(ranks, evaluate)
