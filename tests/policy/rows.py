"""What becomes of rows: alone in the plain model, alone in ours, and merged, down to every parameter's gradient."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.policy.attention import AttentionPlan
from stepwell.policy.model import Policy
from stepwell.policy.tree_attention import laid_out
from stepwell.prefix_tree.tree import PrefixTree, merged
from stepwell.types import Ids
from tests.policy.tiny import one_row, plain_twin


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Of some rows."""

    seen: dict[str, Tensor]
    """Logits, log-probabilities, entropies values, and terms of the loss, of all rows end to end."""
    gradients: dict[str, Tensor]
    """By parameter, of those that the loss reaches."""

    def errors(self, expected: "Outcome") -> dict[str, float]:
        """By name, how far it is from what is expected, relative to the norm of that.

        Of a gradient that nearly cancels out, relative to a tenth of the largest; of numbers near 0, to 0.1 each.
        """
        assert self.gradients.keys() == expected.gradients.keys()
        least = 0.1 * max(float(gradient.norm()) for gradient in expected.gradients.values())
        found = {n: _error(self.seen[n], x, 0.1 * x.numel() ** 0.5) for n, x in expected.seen.items()}
        return found | {name: _error(self.gradients[name], g, least) for name, g in expected.gradients.items()}

    def assert_is(self, expected: "Outcome", tolerance: float) -> None:
        """The same, but for relative errors up to `tolerance`."""
        wrong = {name: error for name, error in self.errors(expected).items() if not error <= tolerance}
        assert not wrong, wrong


def _error(got: Tensor, expected: Tensor, least: float) -> float:
    distance = float((got - expected).double().norm())
    return distance and distance / max(float(expected.double().norm()), least)


def alone(policy: Policy, rows: Sequence[Ids]) -> Outcome:
    """Each row by itself, by our own evaluation."""
    parts = []
    for row in rows:
        packed = one_row(row)
        hidden = policy.hidden(*packed)
        parts.append((policy.logits(hidden), policy.values(policy.critic_states(hidden, *packed))))
    return _judged(policy, policy.model, policy.critic.trunk, rows, parts)


def plain(policy: Policy, rows: Sequence[Ids]) -> Outcome:
    """Each row by itself, by transformers."""
    twin = plain_twin(policy)
    trunk = copy.deepcopy(twin.base_model) if policy.own_critic else None
    if trunk is not None:
        trunk.load_state_dict(policy.critic.trunk.state_dict())
    parts = []
    for row in rows:
        ids = torch.from_numpy(row.astype(np.int64))[None]
        out = twin(ids, output_hidden_states=True)
        states = out.hidden_states[-1] if policy.critic.kind == "shared" else out.hidden_states[-1].detach()
        states = states if trunk is None else trunk(ids).last_hidden_state
        parts.append((out.logits[0], policy.values(states[0])))
    return _judged(policy, twin, trunk, rows, parts)


def together(
    policy: Policy,
    rows: Sequence[Ids],
    plan: AttentionPlan | None = None,
    *,
    positions: Tensor | None = None,
    tree: PrefixTree | None = None,
) -> Outcome:
    """All rows merged, by `plan` or the back end that suits them; `positions` and `tree` are for mistakes."""
    tree = tree or merged(rows)
    ids, depths, chosen = laid_out(tree)
    packed = ids, depths if positions is None else positions, plan or chosen
    hidden = policy.hidden(*packed)
    states = policy.critic_states(hidden, *packed)
    places = [torch.from_numpy(tree.places(number)) for number in range(len(rows))]
    parts = [(policy.logits(hidden[at]), policy.values(states[at])) for at in places]
    return _judged(policy, policy.model, policy.critic.trunk, rows, parts)


def _judged(
    policy: Policy,
    model: torch.nn.Module,
    trunk: torch.nn.Module | None,
    rows: Sequence[Ids],
    parts: Sequence[tuple[Tensor, Tensor]],
) -> Outcome:
    """A loss that is linear in nothing, and differs between rows at the tokens that they share."""
    parameters = {f"model.{name}": p for name, p in model.named_parameters()}
    parameters |= {f"critic.trunk.{name}": p for name, p in (trunk.named_parameters() if trunk else ())}
    parameters |= {f"critic.head.{name}": p for name, p in policy.critic.head.named_parameters()}
    judged = [_row_loss(number, row, *part) for number, (row, part) in enumerate(zip(rows, parts, strict=True))]
    named = {name: p for name, p in parameters.items() if p.requires_grad}
    loss = torch.cat([seen["losses"] for seen in judged]).sum()
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return Outcome(
        {name: torch.cat([seen[name].detach().flatten() for seen in judged]) for name in judged[0]},
        {name: g for name, g in zip(named, gradients, strict=True) if g is not None},
    )


def _row_loss(number: int, row: Ids, logits: Tensor, values: Tensor) -> dict[str, Tensor]:
    every = logits.log_softmax(-1)
    chosen = every[:-1].gather(1, torch.from_numpy(row[1:].astype(np.int64))[:, None]).squeeze(1)
    entropies = -(every.exp() * every).sum(-1)
    random = np.random.default_rng(number)
    old, advantage, target = torch.from_numpy(random.normal(-3, 0.3, len(chosen))), random.normal(), random.normal()
    ratios = (0.1 * (chosen - old.to(chosen.dtype))).exp()
    losses = torch.stack([-advantage * ratios.sum(), -0.1 * entropies.sum(), (values - target).square().sum()])
    return {"logits": logits, "logprobs": chosen, "entropies": entropies, "values": values, "losses": losses}
