"""How an update is cut into optimiser steps, and what it costs no result: adapters, precision, critics of all kinds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepwell.algorithms.objective import Objective
from stepwell.errors import NonFiniteUpdate
from stepwell.policy.model import Policy
from stepwell.trainer.scoring import Scored, response_logprobs
from stepwell.types import Sample, Step
from tests.policy.tiny import one_row, plain_logprobs, random_ids, tiny_policy
from tests.trainer.builders import SHAPES, make_learner, sampled, unpacked


def batch(policy: Policy, values: int = 0) -> list[Sample]:
    return [sampled(policy, *shape, seed, values=values) for seed, shape in enumerate(SHAPES)]


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.trainable_state().items()}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


# optimiser steps


def test_an_update_is_one_version_however_many_optimiser_steps_it_has() -> None:
    policy = tiny_policy()
    metrics = make_learner(policy, epochs=3, minibatch_steps=4).update(batch(policy), Objective())
    assert policy.version == 1
    assert metrics["optimizer_steps"] == 6
    assert metrics["ratio_error"] > 0  # the later steps see a policy that has moved


def test_each_epoch_trains_on_every_sample_once() -> None:
    policy, seen = tiny_policy(), []
    samples = batch(policy)
    learner = make_learner(policy, epochs=2, minibatch_steps=4, micro_batch_tokens=20)
    learner.update(samples, Objective(), lambda micro: seen.extend(tuple(row.tolist()) for row in micro.rows()))
    every = sorted(tuple(s.token_ids.tolist()) for s in samples)
    assert sorted(seen[: len(every)]) == every
    assert sorted(seen[len(every) :]) == every
    assert seen[: len(every)] != seen[len(every) :]  # in another order


def test_the_order_is_the_same_after_a_restart() -> None:
    outcomes = []
    for _ in range(2):
        policy = tiny_policy()
        policy.version = 7
        make_learner(policy, minibatch_steps=2, seed=3).update(batch(policy), Objective())
        outcomes.append(weights(policy))
    assert equal(*outcomes)
    other = tiny_policy()
    make_learner(other, minibatch_steps=2, seed=4).update(batch(other), Objective())
    assert not equal(outcomes[0], weights(other))


def test_optimiser_steps_that_are_not_finite_are_skipped_and_counted_while_others_are() -> None:
    policy = tiny_policy()
    good, bad = batch(policy), sampled(policy, 3, 2, 99)
    poisoned = Sample(
        step_id="bad",
        trajectory_id="bad",
        token_ids=bad.token_ids,
        prompt_length=3,
        logprobs=bad.logprobs,
        advantages=np.full(2, 3e38),
    )
    metrics = make_learner(policy, minibatch_steps=1).update([*good, poisoned], Objective(ratio="exact"))
    assert (metrics["optimizer_steps"], metrics["skipped_optimizer_steps"]) == (len(good), 1)
    assert policy.version == 1
    with pytest.raises(NonFiniteUpdate):
        make_learner(policy).update([poisoned], Objective(ratio="exact"))
    assert policy.version == 1


def test_nobody_samples_between_the_optimiser_steps_of_an_update() -> None:
    policy, locked = tiny_policy(), []
    learner = make_learner(policy, minibatch_steps=2)
    learner.update(batch(policy), Objective(), lambda _: locked.append(policy._lock.locked()))
    assert not locked[0]
    assert all(locked[1:])
    assert not policy._lock.locked()


# what is trained


def test_adapters_add_nothing_at_first_and_only_they_are_trained() -> None:
    plain, policy = tiny_policy("qwen3"), tiny_policy("qwen3", settings={"lora": {"rank": 4}})
    row = random_ids(9, 3)
    torch.testing.assert_close(plain_logprobs(plain, row), _logits(policy, row))
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    for _ in range(2):  # B starts at 0, so A has its first gradient in the second update
        make_learner(policy, lr=1e-2).update(batch(policy), Objective())
    moved = {name for name, p in policy.model.named_parameters() if not torch.equal(before[name], p)}
    assert moved
    assert all("lora_" in name for name in moved)
    assert {name.removeprefix("model.") for name in policy.trainable_state() if "lora_" in name} >= moved


def _logits(policy: Policy, row: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        hidden = policy.hidden(*one_row(row))
        return policy.logits(hidden).log_softmax(-1)


def test_gradient_checkpointing_changes_no_number() -> None:
    outcomes, passes = [], []
    for checkpointing in (False, True):
        policy = tiny_policy("llama", settings={"gradient_checkpointing": checkpointing})
        samples = batch(policy)
        inner = policy.model.base_model.layers[0].mlp
        inner.register_forward_pre_hook(lambda *_, at=checkpointing: passes.append(at))
        metrics = unpacked(make_learner(policy).update(samples, Objective()))
        outcomes.append((metrics, weights(policy)))
    assert passes.count(True) == 2 * passes.count(False)  # once more, on the way back
    (metrics, state), (other_metrics, other_state) = outcomes
    assert other_metrics == pytest.approx(metrics, rel=1e-5, abs=1e-6)
    for name, tensor in state.items():
        torch.testing.assert_close(other_state[name], tensor, atol=1e-6, rtol=1e-5)


def test_half_precision_keeps_full_weights_and_stays_near() -> None:
    exact, rough = tiny_policy(), tiny_policy(settings={"precision": "bfloat16"})
    samples = batch(exact)
    assert all(p.dtype == torch.float32 for p in rough.trainable_parameters())
    metrics = make_learner(rough).update(samples, Objective())
    expected = make_learner(exact).update(samples, Objective())
    assert metrics["policy_loss"] == pytest.approx(expected["policy_loss"], abs=0.05)
    assert metrics["logprob_gap_max"] > expected["logprob_gap_max"]


@pytest.mark.parametrize("critic", ["head", "shared", "model"])
def test_every_kind_of_critic_learns_the_value_of_a_state(critic: str) -> None:
    policy = tiny_policy(settings={"critic": critic})
    learner = make_learner(policy, lr=0.0 if critic != "shared" else 1e-4, critic_lr=1e-2)
    steps = [_step(s) for s in batch(policy)]
    targets = {step.id: float(i % 2) for i, step in enumerate(steps)}
    errors = []
    for _ in range(40):
        values = learner.values(steps, "step")
        samples = [
            _valued(sample, targets[step.id], values[step.id])
            for sample, step in zip(batch(policy), steps, strict=True)
        ]
        errors.append(np.mean([(values[name][0] - target) ** 2 for name, target in targets.items()]))
        learner.update(samples, Objective(value_clip=0))
    assert errors[-1] < 0.25 * errors[0]


def _step(sample: Sample) -> Step:
    response = sample.token_ids[sample.prompt_length :]
    return Step(
        id=sample.step_id,
        trajectory_id="t",
        index=0,
        prompt_ids=sample.token_ids[: sample.prompt_length],
        response_ids=response,
        logprobs=sample.logprobs,
    )


def _valued(sample: Sample, target: float, value: np.ndarray) -> Sample:
    return Sample(
        step_id=sample.step_id,
        trajectory_id=sample.trajectory_id,
        token_ids=sample.token_ids,
        prompt_length=sample.prompt_length,
        logprobs=sample.logprobs,
        advantages=sample.advantages * 0,
        value_targets=[target],
        old_values=value,
    )


@pytest.mark.parametrize("scope", ["step", "token"])
def test_a_critic_of_its_own_reads_what_one_on_the_policys_states_would_before_either_has_learnt(scope: str) -> None:
    own, shared = tiny_policy(settings={"critic": "model"}), tiny_policy()
    steps = [_step(s) for s in batch(shared)]
    left, right = (make_learner(policy).values(steps, scope) for policy in (own, shared))
    for name, values in left.items():
        np.testing.assert_allclose(values, right[name], atol=1e-5)


# scores


@pytest.mark.parametrize("budget", [1, 20, 10_000])
def test_scores_are_those_of_the_plain_model_whatever_the_budget(budget: int) -> None:
    policy = tiny_policy("qwen3")
    rows = [Scored(random_ids(p, p), random_ids(r, r + 40), 0.5 + p % 3) for p, r in [*SHAPES, (4, 0)]]
    for row, got in zip(rows, response_logprobs(policy, rows, budget), strict=True):
        ids = np.concatenate([row.prompt_ids, row.response_ids]).tolist()
        plain = plain_logprobs(policy, ids, row.temperature)
        expected = [float(plain[len(row.prompt_ids) - 1 + k, token]) for k, token in enumerate(row.response_ids)]
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_identity_8_the_value_of_a_state_does_not_depend_on_the_response_that_follows_it() -> None:
    policy = tiny_policy()
    sample = batch(policy)[3]
    step = _step(sample)
    other = Step(
        id=step.id,
        trajectory_id="t",
        index=0,
        prompt_ids=step.prompt_ids,
        response_ids=(step.response_ids + 1) % 30,
        logprobs=step.logprobs,
    )
    learner = make_learner(policy)
    for scope in ("step", "token"):
        first, second = (learner.values([s], scope)[step.id][0] for s in (step, other))
        assert first == pytest.approx(second, abs=1e-6)


def test_identity_8_the_value_of_a_step_has_no_gradient_from_behind_its_prompt() -> None:
    policy = tiny_policy(settings={"critic": "model"})
    sample = batch(policy)[3]
    embedded: list[torch.Tensor] = []
    table = policy.critic.trunk.get_input_embeddings()
    table.register_forward_hook(lambda *call: embedded.append(call[2]) or call[2].retain_grad())
    states = policy.critic_states(None, *one_row(sample.token_ids))
    policy.values(states)[sample.prompt_length - 1].backward()
    moved = embedded[0].grad[0].abs().sum(-1)
    assert (moved[: sample.prompt_length] > 0).all()
    assert (moved[sample.prompt_length :] == 0).all()


# mini-batches and whole trajectories


def trajectories(policy: Policy, lengths: tuple[int, ...]) -> list[Sample]:
    made = []
    for number, length in enumerate(lengths):
        for index in range(length):
            sample = sampled(policy, 4, 3, 100 * number + index, noise=0.1)
            made.append(replace(sample, step_id=f"{number}-{index}", trajectory_id=f"t{number}", index=index))
    return made


@pytest.mark.parametrize(
    "objective",
    [Objective(aggregation="per_trajectory"), Objective(aggregation="per_sequence"), Objective(ratio="sequence")],
    ids=["per_trajectory", "per_sequence", "sequence"],
)
def test_where_trajectories_count_no_mini_batch_cuts_one(objective: Objective) -> None:
    policy, steps = tiny_policy(), []
    samples = trajectories(policy, (1, 5, 2, 3))
    of_row = {tuple(s.token_ids.tolist()): s.trajectory_id for s in samples}
    optimizer_steps: list[set[str]] = []
    learner = make_learner(policy, minibatch_steps=3)
    inner = learner.optimizer.step
    learner.optimizer.step = lambda: (optimizer_steps.append(set(steps)), steps.clear(), inner())
    learner.update(samples, objective, lambda m: steps.extend(of_row[tuple(r.tolist())] for r in m.rows()))
    assert sorted(name for part in optimizer_steps for name in part) == ["t0", "t1", "t2", "t3"]


def test_the_order_of_rows_changes_no_mini_batch() -> None:
    outcomes = []
    for order in (1, -1):
        policy = tiny_policy()
        samples = batch(policy)
        samples += [replace(s, step_id=f"twin of {s.step_id}", advantages=s.advantages + 1) for s in samples[:3]]
        make_learner(policy, minibatch_steps=2, epochs=2).update(samples[::order], Objective())
        outcomes.append(weights(policy))
    for name, tensor in outcomes[0].items():
        torch.testing.assert_close(outcomes[1][name], tensor, atol=1e-5, rtol=1e-4)


# what is measured


def test_an_optimiser_step_that_the_correction_masks_altogether_is_skipped_and_counted() -> None:
    policy = tiny_policy()
    objective = Objective(old_logprobs="trainer", correction="mask", correction_cap=1.5)
    samples = [replace(s, old_logprobs=s.logprobs + np.float32(3)) for s in batch(policy)]
    learner = make_learner(policy, weight_decay=0.1)
    learner.update(batch(policy), Objective())
    before = weights(policy)
    with pytest.raises(NonFiniteUpdate, match="masks every token"):
        learner.update(samples, objective)
    assert equal(before, weights(policy))
    with pytest.raises(NonFiniteUpdate, match="masks every token"):  # whatever else has a gradient
        learner.update(samples, objective.model_copy(update={"entropy_coefficient": 0.1}))
    mixed = [*samples[:3], *batch(policy)[3:]]
    metrics = learner.update(mixed, objective)
    masked = sum(len(s.advantages) for s in samples[:3]) / sum(len(s.advantages) for s in mixed)
    assert metrics["masked_rate"] == pytest.approx(masked)
    assert metrics["correction_mean"] == pytest.approx(1 - masked)


def test_what_a_skipped_optimiser_step_measured_is_in_no_metric() -> None:
    policy = tiny_policy()
    good = batch(policy)
    poisoned = replace(good[0], step_id="bad", trajectory_id="bad", advantages=np.full(2, 3e38))
    metrics = make_learner(policy, minibatch_steps=1).update([*good, poisoned], Objective(ratio="exact"))
    assert np.isfinite(list(metrics.values())).all()


def test_the_largest_ratio_and_the_explained_variance_are_what_they_say() -> None:
    policy = tiny_policy()
    samples = batch(policy, values=1)
    moved = [replace(s, logprobs=s.logprobs - np.float32(0.5 * (i == 2))) for i, s in enumerate(samples)]
    told = [replace(s, value_targets=[float(i)], old_values=[i / 2]) for i, s in enumerate(moved)]
    metrics = make_learner(policy).update(told, Objective())
    assert metrics["ratio_max"] == pytest.approx(np.exp(0.5), rel=1e-3)
    assert metrics["explained_variance"] == pytest.approx(0.75)
    assert metrics["logprob_gap_max"] == pytest.approx(0.5, rel=1e-3)


def test_alpha_scales_what_adapters_add() -> None:
    outputs = []
    for alpha in (8, 16):
        policy = tiny_policy(settings={"lora": {"rank": 4, "alpha": alpha}})
        torch.manual_seed(5)
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.1 * torch.randn_like(parameter))
        outputs.append(_logits(policy, random_ids(6, 1)))
    assert not torch.allclose(*outputs)
