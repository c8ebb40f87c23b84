"""Our objectives against veRL's own functions, to 1e-6: values and gradients on ragged rows."""

import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("verl") is None:
    pytest.skip("veRL is not installed; `make test-verl` runs these", allow_module_level=True)

import torch
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

from stepwell.algorithms.objective import Objective
from stepwell.trainer.losses import kl_estimate, policy_loss, value_loss
from stepwell.trainer.ratios import log_ratio

LENGTHS = (4, 1, 3)
MASK = torch.tensor([[k < n for k in range(4)] for n in LENGTHS])
ROWS = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))
AGGREGATIONS = {"per_step": "seq-mean-token-mean", "per_token": "token-mean"}


def table(seed: int, spread: float = 0.3) -> Tensor:
    return spread * torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 4)))


def weights(aggregation: str) -> Tensor:
    counts = torch.tensor(LENGTHS, dtype=torch.float64)
    of_row = 1 / (3 * counts) if aggregation == "per_step" else torch.full((3,), 1 / sum(LENGTHS), dtype=torch.float64)
    return of_row[ROWS]


def config(objective: Objective) -> ActorConfig:
    low, high = objective.clip
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=low,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=objective.dual_clip or 1e6,
    )


def ours(new: Tensor, old: Tensor, advantages: Tensor, objective: Objective) -> Tensor:
    weight = weights(objective.aggregation)
    ratios = log_ratio(new[MASK], old[MASK], ROWS, objective.ratio)
    return policy_loss(ratios, advantages[MASK], weight, objective)[0]


CASES = {
    "vanilla": ("vanilla", Objective(clip_low=0.1, clip_high=0.2)),
    "vanilla per token": ("vanilla", Objective(aggregation="per_token")),
    "dual clip": ("vanilla", Objective(dual_clip=1.5)),
    "gspo": ("gspo", Objective(ratio="geo", clip_low=0.05, clip_high=0.1)),
    "gspo per token": ("gspo", Objective(ratio="geo", clip_low=0.05, clip_high=0.1, aggregation="per_token")),
    "cispo": ("cispo", Objective(surrogate="cispo", clip_low=0.1, clip_high=0.1)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "objective"), CASES.values(), ids=CASES)
def test_the_policys_loss_and_its_gradient_are_verls(name: str, objective: Objective, seed: int) -> None:
    old, per_row = table(seed), table(seed + 20, 2.0)[:, :1]
    advantages = per_row.expand(3, 4) if objective.ratio == "geo" else table(seed + 20, 2.0)
    left, right = (table(seed + 10).requires_grad_() for _ in range(2))
    mine = ours(left, old, advantages, objective)
    theirs, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=old,
        log_prob=right,
        advantages=advantages,
        response_mask=MASK.double(),
        loss_agg_mode=AGGREGATIONS[objective.aggregation],
        config=config(objective),
    )
    mine.backward()
    theirs.backward()
    torch.testing.assert_close(left.grad, right.grad, atol=1e-6, rtol=1e-6)
    if objective.surrogate == "clip":  # cispo's differ by what has no gradient
        torch.testing.assert_close(mine.detach(), theirs.detach(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_estimates_of_the_divergence_are_verls(kind: str) -> None:
    new, reference = table(1, 2.0), table(2, 2.0)
    torch.testing.assert_close(kl_estimate(new, reference, kind), core_algos.kl_penalty(new, reference, kind))


@pytest.mark.parametrize("clip", [0.1, 0.5])
def test_the_value_loss_is_verls(clip: float) -> None:
    values, targets, old = table(1, 1.0), table(2, 1.0), table(3, 1.0)
    theirs, _ = core_algos.compute_value_loss(values, targets, old, MASK.double(), clip, "token-mean")
    mine = value_loss(values[MASK], targets[MASK], old[MASK], weights("per_token"), clip)
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)
