"""Updates turn by turn (docs/papers.md, identities 22 and 23)."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from stepwell.algorithms.base import Sweep
from stepwell.algorithms.objective import Objective
from stepwell.errors import ConfigError
from stepwell.policy.critic import Critic
from stepwell.policy.model import Policy
from stepwell.policy.ranks import ALONE
from stepwell.policy.shards import at_once
from stepwell.trainer.scoring import Scored, response_logprobs
from stepwell.trainer.sweep import sweep_update
from stepwell.types import Sample
from tests.policy.tiny import tiny_policy
from tests.trainer.builders import make_learner, sampled

OBJECTIVE = Objective(ratio="geo", clip_low=1.0, clip_high=10.0)


def turns(policy: Policy, lengths: tuple[int, ...] = (3, 2)) -> list[Sample]:
    """Trajectories of so many turns each, every one with its advantage."""
    made = []
    for number, length in enumerate(lengths):
        for index in range(length):
            sample = sampled(policy, 4 + index, 3, 10 * number + index)
            made.append(
                replace(sample, trajectory_id=f"t{number}", index=index, advantages=np.full(3, (-1.0) ** number))
            )
    return made


def state(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.trainable_state().items()}


@pytest.mark.parametrize(("order", "expected"), [("reverse", [2, 1, 0]), ("forward", [0, 1, 2])])
def test_turns_are_trained_one_after_the_other_and_make_one_version(order: str, expected: list[int]) -> None:
    policy, seen = tiny_policy(), []
    samples = turns(policy)
    of_row = {tuple(s.token_ids.tolist()): s.index for s in samples}
    metrics = sweep_update(
        make_learner(policy),
        samples,
        OBJECTIVE,
        Sweep(order=order),
        lambda micro: seen.append({of_row[tuple(row.tolist())] for row in micro.rows()}),
    )
    assert seen == [{turn} for turn in expected]
    assert metrics["optimizer_steps"] == 3
    assert policy.version == 1


def test_identity_22_a_single_turn_is_an_ordinary_update() -> None:
    swept, plain = tiny_policy(), tiny_policy()
    samples = turns(swept, (1, 1))
    sweep_update(make_learner(swept), samples, OBJECTIVE, Sweep())
    make_learner(plain).update(samples, OBJECTIVE)
    for name, tensor in state(plain).items():
        torch.testing.assert_close(state(swept)[name], tensor)


def test_identity_22_without_learning_nothing_is_carried() -> None:
    policy = tiny_policy()
    metrics = sweep_update(make_learner(policy, lr=0.0, critic_lr=0.0), turns(policy), OBJECTIVE, Sweep())
    assert metrics["carried_ratio_mean"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("ratio", ["exact", "geo"])
def test_what_a_turn_did_to_its_own_probability_scales_the_advantage_of_the_next(ratio: str) -> None:
    policy = tiny_policy()
    samples = turns(policy, (2,))
    shown: list[float] = []
    learner = make_learner(policy, lr=1e-2)
    sweep = Sweep(ratio=ratio)
    sweep_update(learner, samples, OBJECTIVE, sweep, lambda micro: shown.append(float(micro.advantages[0])))
    after_last = tiny_policy()
    make_learner(after_last, lr=1e-2).update([samples[1]], OBJECTIVE)
    z = response_logprobs(after_last, [Scored.of(samples[1])], 100)[0] - samples[1].logprobs
    expected = np.exp(z.sum() if ratio == "exact" else z.mean())
    assert shown == pytest.approx([1.0, expected], rel=1e-3)
    assert abs(expected - 1) > 1e-3


class Table(Policy):
    """Predicts each token from a row of its own for the token before: turns with other tokens share no parameter."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.name, self.version = "table", 0
        self.model = torch.nn.Embedding(20, 20)
        self.critic = Critic("head", None, 20, 4)
        self._lock = threading.Lock()
        self._autocast = False
        self.sharded_over(ALONE, at_once)

    def hidden(self, ids_n, positions_n, plan):
        return self.model(ids_n)

    def logits(self, hidden_me):
        return hidden_me


def test_identity_23_turns_that_share_no_parameter_may_be_trained_at_once_or_one_after_the_other() -> None:
    """Each parameter moves by lr·sign(gradient) here, so that what is carried, a positive factor, changes nothing."""
    swept, at_once = Table(), Table()
    samples = []
    for index, tokens in enumerate([[1, 2, 3, 4], [11, 12, 13, 14]]):
        row = Scored(np.array(tokens[:1], np.int32), np.array(tokens[1:], np.int32))
        logprobs = response_logprobs(swept, [row], 100)[0]
        samples.append(
            Sample(
                step_id=f"s{index}",
                trajectory_id="t",
                index=index,
                token_ids=tokens,
                prompt_length=1,
                logprobs=logprobs,
                advantages=np.full(3, 0.7),
            )
        )
    settings = {"lr": 0.01, "betas": (0.0, 0.0)}
    metrics = sweep_update(make_learner(swept, **settings), samples, OBJECTIVE, Sweep())
    make_learner(at_once, **settings).update(samples, OBJECTIVE)
    assert metrics["carried_ratio_mean"] > 1.01
    torch.testing.assert_close(swept.model.weight, at_once.model.weight, atol=1e-5, rtol=1e-4)
    assert not torch.equal(swept.model.weight, Table().model.weight)


def test_bounds_hold_each_ratio_and_their_product() -> None:
    policy = tiny_policy()
    shown: list[float] = []
    samples = [replace(s, advantages=np.ones(3)) for s in turns(policy, (6,))]
    learner = make_learner(policy, lr=0.05)
    sweep = Sweep(ratio="exact", bounds=(0.8, 1.2))
    sweep_update(learner, samples, OBJECTIVE, sweep, lambda m: shown.append(float(m.advantages[0])))
    assert len(shown) == 6
    assert all(0.8 - 1e-6 <= factor <= 1.2 + 1e-6 for factor in shown)
    assert sum(factor == pytest.approx(1.2) for factor in shown[1:]) > 1  # the product would be over it by the second


def test_each_ratio_is_bounded_before_it_is_carried() -> None:
    """Where the carried product is low, a single ratio over the bound would lift it too far."""
    policy = tiny_policy()
    shown: list[float] = []
    signs = (1.0, 1.0, -1.0)  # of turns 0, 1, 2: the last one, trained first, becomes unlikely, the next one likely
    samples = [replace(s, advantages=np.full(3, signs[s.index])) for s in turns(policy, (3,))]
    learner = make_learner(policy, lr=0.05)
    sweep = Sweep(ratio="exact", bounds=(0.8, 1.2))
    sweep_update(learner, samples, OBJECTIVE, sweep, lambda m: shown.append(float(m.advantages[0])))
    assert shown[1] == pytest.approx(0.8)
    assert shown[2] == pytest.approx(0.96)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_turns_denominator_is_of_before_the_sweep_or_of_before_its_own_step(recompute: bool) -> None:
    policy = tiny_policy()
    samples = turns(policy, (2, 2))
    olds: list[np.ndarray] = []
    learner = make_learner(policy, lr=1e-2)
    sweep = Sweep(recompute_old=recompute)
    sweep_update(learner, samples, OBJECTIVE, sweep, lambda m: olds.append(m.old_logprobs.numpy()))
    first = np.concatenate([s.logprobs for s in samples if s.index == 0])
    far = np.abs(np.sort(olds[-1]) - np.sort(first)).max()
    assert (far > 1e-3) == recompute


def test_turns_that_all_became_much_likelier_do_not_overflow() -> None:
    policy = tiny_policy()
    samples = [replace(s, advantages=np.ones(3)) for s in turns(policy, (12,))]
    metrics = sweep_update(make_learner(policy, lr=3.0), samples, OBJECTIVE, Sweep())
    assert np.isfinite(metrics["carried_ratio_mean"])


@pytest.mark.parametrize("cut", [{"epochs": 2}, {"minibatch_steps": 1}])
def test_a_sweep_refuses_another_cut_of_the_update_before_it_begins(cut: dict) -> None:
    policy = tiny_policy()
    before = state(policy)
    with pytest.raises(ConfigError, match=next(iter(cut))):
        sweep_update(make_learner(policy, **cut), turns(policy), OBJECTIVE, Sweep())
    assert all(torch.equal(before[name], tensor) for name, tensor in state(policy).items())
