"""The supervised warm-up, against transformers' own loss."""

import numpy as np
import pytest
import torch

from stepwell.errors import InvalidRecord
from stepwell.trainer.sft import Demonstration, supervised_update
from tests.policy.tiny import CONFIGS, plain_twin, random_ids, tiny_policy


def demonstration(length: int, produced: list[int], seed: int) -> Demonstration:
    mask = np.zeros(length, np.bool_)
    mask[produced] = True
    return Demonstration(random_ids(length, seed), mask)


ROWS = [demonstration(9, [4, 5, 8], 0), demonstration(3, [1], 1), demonstration(9, [8], 2)]


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_loss_and_gradient_are_transformers_own_on_the_masked_tokens(kind: str) -> None:
    policy = tiny_policy(kind)
    twin = plain_twin(policy)
    terms = []
    for row in ROWS:
        ids = torch.tensor([row.ids.tolist()])
        logp = twin(ids).logits[0].log_softmax(-1)
        terms += [-logp[i - 1, ids[0, i]] for i in np.flatnonzero(row.mask)]
    expected = torch.stack(terms).mean()
    expected.backward()
    optimizer = torch.optim.SGD(policy.trainable_parameters(), lr=1.0)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    assert supervised_update(policy, optimizer, ROWS, grad_clip=1e9) == pytest.approx(expected.item(), rel=1e-5)
    after = dict(policy.model.named_parameters())
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(before[name] - after[name], parameter.grad, atol=1e-5, rtol=1e-4)
    assert policy.version == 0


def test_the_demonstrated_tokens_become_likely() -> None:
    policy = tiny_policy()
    optimizer = torch.optim.AdamW(policy.trainable_parameters(), lr=1e-2)
    losses = [supervised_update(policy, optimizer, ROWS) for _ in range(30)]
    assert losses[-1] < 0.05 < 2 < losses[0]


def test_demonstrations_of_nothing_are_refused_and_change_no_weight() -> None:
    policy = tiny_policy()
    before = {name: tensor.clone() for name, tensor in policy.trainable_state().items()}
    optimizer = torch.optim.AdamW(policy.trainable_parameters(), lr=0.1)
    with pytest.raises(InvalidRecord, match="mask is empty"):
        supervised_update(policy, optimizer, [demonstration(5, [], 0), demonstration(3, [], 1)])
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.trainable_state().items())
