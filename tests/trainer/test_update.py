"""One update, against a hand-written one: the plain transformers model, row by row, without packing."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from stepwell.algorithms.base import Objective
from stepwell.engines.base import Generation
from stepwell.engines.local import LocalEngine
from stepwell.errors import NonFiniteUpdate
from stepwell.policy.model import Policy
from stepwell.trainer.collate import MicroBatch, token_weights
from stepwell.trainer.update import Learner
from stepwell.types import Sample, Sampling, Step
from tests.policy.tiny import CONFIGS, plain_logprobs, plain_twin, random_ids, tiny_policy
from tests.trainer.builders import SHAPES, make_learner, sampled, unpacked

OBJECTIVES = {
    "token": Objective(clip_low=0.05, clip_high=0.1),
    "geo": Objective(ratio="geo", clip_low=3e-2, clip_high=4e-2, aggregation="per_trajectory"),
    "per token": Objective(aggregation="per_token", value_clip=0.0),
    "sqrt": Objective(ratio="sqrt", clip_low=0.1, clip_high=0.1, entropy_coefficient=0.1),
    "exact": Objective(ratio="exact", clip_low=0.1, clip_high=0.3, aggregation="per_trajectory"),
    "sequence": Objective(ratio="sequence", clip_low=0.02, clip_high=0.03, aggregation="per_sequence"),
    "kl": Objective(kl_coefficient=0.3, dual_clip=3.0),
    "truncated": Objective(old_logprobs="trainer", correction="truncate", correction_cap=1.05),
    "masked": Objective(clip_low=0.4, clip_high=0.4, old_logprobs="trainer", correction="mask", correction_cap=1.2),
    "masked steps": Objective(
        ratio="geo",
        clip_low=0.4,
        clip_high=0.4,
        old_logprobs="trainer",
        correction="mask",
        correction_level="step",
        correction_cap=1.2,
    ),
    "cispo": Objective(surrogate="cispo", clip_high=0.05, kl_coefficient=0.2, kl_estimator="k2"),
}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


SYSTEM = tuple(random_ids(20, 77).tolist())
"""What the prompts of one recipe begin with."""


def ragged(policy: Policy, values: str = "step", beginning: Sequence[int] = (), off: float = 0.0) -> list[Sample]:
    """Samples of several lengths, somewhat off-policy, at a temperature; the trainer's own opinion of what they were
    sampled with is `off` by so much."""
    counts = {"step": lambda _: 1, "token": lambda response: response, "none": lambda _: 0}[values]
    made = [
        sampled(
            policy, prompt, response, seed, temperature=0.8, noise=0.1, values=counts(response), beginning=beginning
        )
        for seed, (prompt, response) in enumerate(SHAPES)
    ]
    first = {sample.trajectory_id: sample for sample in reversed(made)}  # a trajectory has one advantage
    return [
        replace(
            s,
            advantages=np.full(len(s.advantages), first[s.trajectory_id].advantages[0]),
            old_logprobs=s.logprobs + np.float32(off) * np.cos(np.arange(len(s.logprobs)) + s.prompt_length),
            reference_logprobs=s.logprobs + np.float32(0.2) * np.sin(np.arange(len(s.logprobs))),
        )
        for s in made
    ]


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    """What the first update's gradient was: AdamW's first moment is a tenth of it."""
    state = learner.optimizer.state
    named = [*learner.policy.model.named_parameters(), *learner.policy.critic.head.named_parameters()]
    return {name: state[p]["exp_avg"] / (1 - 0.9) for name, p in named if p in state}


def state_of(policy: Policy) -> dict[str, torch.Tensor]:
    named = [*policy.model.named_parameters(), *policy.critic.head.named_parameters()]
    return {name: parameter.detach().clone() for name, parameter in named}


def hand_written_loss(policy: Policy, twin: torch.nn.Module, samples: Sequence[Sample], objective: Objective):
    """the papers' formulas on unpacked rows of the plain model; the critic reads detached states."""
    policy_term, value_term, values = torch.zeros(()), torch.zeros(()), sum(len(s.value_targets) for s in samples)
    extra, rows = torch.zeros(()), []
    for sample in samples:
        ids = torch.tensor(sample.token_ids.tolist())
        out = twin(ids[None], output_hidden_states=True)
        logp = (out.logits[0] / sample.temperature).log_softmax(-1)
        first = sample.prompt_length
        new = torch.stack([logp[i - 1, ids[i]] for i in range(first, len(ids))])
        rows.append((out, new, -(logp.exp() * logp).sum(-1)[first - 1 : len(ids) - 1]))
    differences = [new - torch.tensor(denominator(s).tolist()) for s, (_, new, _) in zip(samples, rows, strict=True)]
    everything = zip(samples, rows, token_weights(samples, objective.aggregation), strict=True)
    for number, (sample, (out, new, entropies), weights) in enumerate(everything):
        first = sample.prompt_length
        ratio = torch.exp(unit_log_ratio(samples, differences, number, objective.ratio))
        advantage = torch.tensor(sample.advantages.tolist())
        bounded = ratio.clamp(1 - objective.clip[0], 1 + objective.clip[1])
        gain = torch.min(ratio * advantage, bounded * advantage)
        if objective.dual_clip:
            gain = torch.where(advantage < 0, torch.max(gain, objective.dual_clip * advantage), gain)
        if objective.surrogate == "cispo":
            gain = bounded.detach() * advantage * differences[number]
        gain = gain * importance(sample, objective)
        policy_term = policy_term - (torch.from_numpy(weights) * gain).sum()
        x = torch.tensor(sample.reference_logprobs.tolist()) - new if objective.kl_coefficient else torch.zeros(1)
        divergence = x**2 / 2 if objective.kl_estimator == "k2" else torch.exp(x) - x - 1
        regular = objective.kl_coefficient * divergence - objective.entropy_coefficient * entropies
        extra = extra + (torch.from_numpy(weights) * regular).sum()
        for k, (target, old) in enumerate(zip(sample.value_targets.tolist(), sample.old_values.tolist(), strict=True)):
            value = policy.critic(out.hidden_states[-1][0, first - 1 + k].detach()).squeeze()
            error = (value - target) ** 2
            if objective.value_clip:
                near = old + (value - old).clamp(-objective.value_clip, objective.value_clip)
                error = torch.max(error, (near - target) ** 2)
            value_term = value_term + 0.5 * error / values
    return policy_term, value_term, extra


def denominator(sample: Sample) -> np.ndarray:
    return sample.old_logprobs if len(sample.old_logprobs) else sample.logprobs


def importance(sample: Sample, objective: Objective) -> torch.Tensor:
    gap = denominator(sample) - sample.logprobs
    weight = torch.from_numpy(np.exp(gap if objective.correction_level == "token" else np.full_like(gap, gap.sum())))
    if objective.correction == "truncate":
        return weight.clamp(max=objective.correction_cap)
    if objective.correction == "mask":
        cap = objective.correction_cap
        return torch.where((weight >= 1 / cap) & (weight <= cap), weight, 0.0)
    return torch.ones_like(weight)


def unit_log_ratio(samples: Sequence[Sample], differences: list[torch.Tensor], number: int, kind: str) -> torch.Tensor:
    z = differences[number]
    mine = [d for s, d in zip(samples, differences, strict=True) if s.trajectory_id == samples[number].trajectory_id]
    mu = torch.cat(differences).mean().detach()
    of_unit = {
        "geo": z.mean(),
        "exact": z.sum(),
        "sqrt": mu + len(z) ** 0.5 * (z.mean() - mu),
        "sequence": torch.cat(mine).mean(),
    }
    return z if kind == "token" else of_unit[kind].expand_as(z)


def hand_written_gradients(policy: Policy, samples: Sequence[Sample], objective: Objective):
    twin = plain_twin(policy)
    terms = hand_written_loss(policy, twin, samples, objective)
    sum(terms).backward()
    named = [*twin.named_parameters(), *policy.critic.head.named_parameters()]
    found = {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}
    policy.critic.head.zero_grad(set_to_none=True)
    return [term.item() for term in terms[:2]], found


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        scale = max(float(tensor.abs().max()), 1e-3)
        torch.testing.assert_close(
            got[name], tensor, atol=tolerance * scale, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@every_objective
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_the_gradient_of_one_sample_is_that_of_the_hand_written_loss(kind: str, objective: Objective) -> None:
    policy = tiny_policy(kind)
    sample = sampled(policy, 6, 5, 3, temperature=0.7, noise=0.02, values=5)
    sample = replace(sample, reference_logprobs=sample.logprobs - np.float32(0.1))
    (policy_term, value_term), expected = hand_written_gradients(policy, [sample], objective)
    learner = make_learner(policy)
    metrics = learner.update([sample], objective)
    assert metrics["policy_loss"] == pytest.approx(policy_term, abs=1e-5)
    assert metrics["value_loss"] == pytest.approx(value_term, abs=1e-5)
    assert_same(gradients(learner), expected)


@pytest.mark.parametrize(
    ("name", "values", "beginning"),
    [
        ("token", "none", ()),
        ("geo", "step", ()),
        ("per token", "token", ()),
        ("geo", "token", SYSTEM),
        ("sqrt", "none", ()),
        ("exact", "step", SYSTEM),
        ("sequence", "none", ()),
        ("kl", "none", ()),
        ("cispo", "none", SYSTEM),
        ("truncated", "none", ()),
        ("masked", "none", ()),
        ("masked steps", "none", ()),
    ],
)
def test_the_gradient_of_a_ragged_batch_is_that_of_the_hand_written_loss(name: str, values: str, beginning) -> None:
    policy, objective = tiny_policy("qwen3"), OBJECTIVES[name]
    samples = ragged(policy, values, beginning, off=0.3 * (objective.correction != "none"))
    (policy_term, value_term), expected = hand_written_gradients(policy, samples, objective)
    learner = make_learner(policy, micro_batch_tokens=17 + len(beginning))
    metrics = learner.update(samples, objective)
    assert metrics["policy_loss"] == pytest.approx(policy_term, abs=1e-5)
    assert metrics["value_loss"] == pytest.approx(value_term, abs=1e-5)
    assert_same(gradients(learner), expected)


@pytest.mark.parametrize(("name", "beginning"), [*[(name, ()) for name in OBJECTIVES], ("geo", SYSTEM)])
def test_an_update_depends_neither_on_micro_batches_nor_on_the_order_of_samples(name: str, beginning) -> None:
    objective = OBJECTIVES[name]
    samples = ragged(tiny_policy("llama"), "token", beginning, off=0.3 * (objective.correction != "none"))
    outcomes = []
    for budget, order in ((10**6, 1), (1, -1), (37, 1), (45, -1)):
        learner = make_learner(tiny_policy("llama"), micro_batch_tokens=budget)
        metrics = unpacked(learner.update(samples[::order], objective))
        outcomes.append((metrics, gradients(learner), state_of(learner.policy)))
    (metrics, gradient, state), *others = outcomes
    for other_metrics, other_gradient, other_state in others:
        assert other_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-5)
        assert_same(other_gradient, gradient)
        for name, grad in gradient.items():
            firm = (
                grad.abs() > 1e-5
            )  # AdamW's first step is lr·sign(gradient), so rounding decides where that is near 0
            assert firm.any()
            torch.testing.assert_close(other_state[name][firm], state[name][firm], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("beginning", [(), SYSTEM])
def test_micro_batches_are_shown_before_they_are_trained_on_and_hold_every_sample_once(beginning) -> None:
    policy, rows, versions = tiny_policy(), [], []

    def look(batch: MicroBatch) -> None:
        rows.extend(row.tolist() for row in batch.rows())
        versions.append(policy.version)

    samples = ragged(policy, beginning=beginning)
    make_learner(policy, micro_batch_tokens=40).update(samples, Objective(), look)
    assert sorted(rows) == sorted(s.token_ids.tolist() for s in samples)
    assert len(versions) > 1
    assert set(versions) == {0}
    assert policy.version == 1


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_right_after_sampling_every_ratio_is_1(temperature: float) -> None:
    policy = tiny_policy("qwen3")
    engine = LocalEngine(policy, eos_ids=[0], max_batch=3)
    samples = []
    try:
        for seed, (prompt, response) in enumerate(SHAPES):
            ids = random_ids(prompt, seed)
            sampling = Sampling(temperature=temperature, max_tokens=4 * response, seed=seed)
            chunks = [c async for c in engine.generate(Generation(prompt_ids=ids, sampling=sampling))]
            tokens = [token for chunk in chunks for token in chunk.token_ids]
            samples.append(
                Sample(
                    step_id=f"s{seed}",
                    trajectory_id="t",
                    token_ids=[*ids, *tokens],
                    prompt_length=prompt,
                    logprobs=[logprob for chunk in chunks for logprob in chunk.logprobs],
                    advantages=np.ones(len(tokens)),
                    temperature=sampling.scale,
                )
            )
    finally:
        engine.close()
    metrics = make_learner(policy).update(samples, Objective())
    assert metrics["ratio_error"] < 1e-4
    assert metrics["clip_fraction"] == 0
    assert abs(metrics["approx_kl"]) < 1e-6
    # and the next update of the same samples is off-policy
    assert make_learner(policy).update(samples, Objective())["ratio_error"] > 1e-3


def test_metrics_are_those_of_the_samples() -> None:
    policy = tiny_policy()
    samples = [sampled(policy, 4, 3, 0), sampled(policy, 2, 1, 1)]
    metrics = make_learner(policy).update(samples, Objective())
    rows = [plain_logprobs(tiny_policy(), s.token_ids)[s.prompt_length - 1 : -1] for s in samples]
    entropy = torch.cat([-(row.exp() * row).sum(-1) for row in rows]).mean().item()
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-4)
    assert metrics["trained_steps"] == 2
    assert metrics["trained_tokens"] == 10
    assert metrics["response_tokens"] == 4
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert metrics["policy_loss"] == pytest.approx(-np.mean([s.advantages[0] for s in samples]), abs=1e-5)


def poison(policy: Policy, part: str) -> None:
    module = policy.critic.head if part == "critic" else policy.model
    with torch.no_grad():
        list(module.parameters())[-1].view(-1)[0] = torch.nan


@pytest.mark.parametrize("part", ["trunk", "critic"])
def test_an_update_that_is_not_finite_changes_neither_weights_nor_version_nor_optimiser(part: str) -> None:
    policy = tiny_policy("llama")
    learner = make_learner(policy)
    learner.update(ragged(policy), Objective())
    samples = ragged(policy)
    poison(policy, part)
    before, moments = state_of(policy), {n: t.clone() for n, t in gradients(learner).items()}
    with pytest.raises(NonFiniteUpdate, match="left as they were"):
        learner.update(samples, Objective())
    assert policy.version == 1
    after = state_of(policy)
    assert all(torch.equal(torch.nan_to_num(before[name]), torch.nan_to_num(after[name])) for name in before)
    assert all(torch.equal(moments[name], tensor) for name, tensor in gradients(learner).items())
    assert all(p.grad is None for p in policy.model.parameters())


@pytest.mark.parametrize("huge", ["advantages", "value_targets"])
def test_numbers_that_overflow_the_loss_are_no_update(huge: str) -> None:
    policy = tiny_policy()
    sample = sampled(policy, 3, 2, 0, values=1)
    numbers = {"advantages": np.full(2, 3e38), "value_targets": np.full(1, 3e38)}
    before = state_of(policy)
    with pytest.raises(NonFiniteUpdate):
        make_learner(policy).update([replace(sample, **{huge: numbers[huge]})], Objective())
    assert all(torch.equal(before[name], tensor) for name, tensor in state_of(policy).items())


def test_the_critic_never_moves_the_trunk() -> None:
    policy = tiny_policy()
    before = state_of(policy)
    samples = [sampled(policy, 5, 3, 0, values=3)]
    silent = [replace(s, advantages=np.zeros(3)) for s in samples]
    for _ in range(3):
        make_learner(policy, critic_lr=0.1).update(silent, Objective())
    trunk = {name for name, _ in policy.model.named_parameters()}
    after = state_of(policy)
    assert all(torch.equal(before[name], after[name]) for name in trunk)
    assert all(not torch.equal(before[name], after[name]) for name in after.keys() - trunk)


def test_the_policys_loss_never_moves_the_critic() -> None:
    policy = tiny_policy()
    before = state_of(policy)
    make_learner(policy).update([sampled(policy, 5, 3, 0)], Objective())
    for name, _ in policy.critic.head.named_parameters():
        assert torch.equal(before[name], state_of(policy)[name])


def test_frozen_layers_never_move() -> None:
    policy = tiny_policy("llama", trainable_layers=1, num_hidden_layers=3)
    before = state_of(policy)
    learner = make_learner(policy, weight_decay=0.1)
    for _ in range(3):
        learner.update(ragged(policy), Objective())
    after = state_of(policy)
    trunk = [name for name, _ in policy.model.named_parameters()]
    moved = {name for name in trunk if not torch.equal(before[name], after[name])}
    assert moved == {name for name in trunk if ".layers.2." in name or name == "model.norm.weight"}


def test_training_part_of_the_layers_gives_them_the_gradient_that_training_all_would() -> None:
    whole, part = tiny_policy("qwen3"), tiny_policy("qwen3", trainable_layers=1)
    learners = [make_learner(policy) for policy in (whole, part)]
    for learner in learners:
        learner.update(ragged(learner.policy), Objective())
    everything, some = (gradients(learner) for learner in learners)
    assert_same(some, {name: everything[name] for name in some})


def test_the_gradients_norm_is_clipped_as_a_whole_and_reported_unclipped() -> None:
    free, bound = tiny_policy(), tiny_policy()
    free_learner, bound_learner = make_learner(free), make_learner(bound, grad_clip=0.01)
    norm = free_learner.update(ragged(free, "none"), Objective())["grad_norm"]
    assert bound_learner.update(ragged(bound, "none"), Objective())["grad_norm"] == pytest.approx(norm, rel=1e-5)
    trunk = [name for name, _ in free.model.named_parameters()]
    whole, scaled = gradients(free_learner), gradients(bound_learner)
    for name in trunk:
        if name in whole:
            torch.testing.assert_close(scaled[name], whole[name] * 0.01 / norm, rtol=1e-3, atol=1e-8)


def test_weight_decay_shrinks_the_policy_and_not_the_critic() -> None:
    outcomes = []
    for decay in (0.0, 0.5):
        policy = tiny_policy()
        make_learner(policy, weight_decay=decay, lr=1e-2).update(ragged(policy), Objective())
        outcomes.append(state_of(policy))
    plain, decayed = outcomes
    start = state_of(tiny_policy())
    for name, _ in tiny_policy().model.named_parameters():
        torch.testing.assert_close(decayed[name], plain[name] - 1e-2 * 0.5 * start[name], atol=1e-6, rtol=1e-4)
    for name, _ in tiny_policy().critic.head.named_parameters():
        assert torch.equal(decayed[name], plain[name])


# values


@pytest.fixture
def steps() -> list[Step]:
    made = []
    for seed, (prompt, response) in enumerate([*SHAPES, (4, 0)]):
        ids = random_ids(prompt + response, seed)
        made.append(
            Step(
                id=f"s{seed}",
                trajectory_id="t",
                index=seed,
                prompt_ids=ids[:prompt],
                response_ids=ids[prompt:],
                logprobs=np.full(response, -1.0),
            )
        )
    return made


def plain_values(policy: Policy, step: Step) -> np.ndarray:
    """The critic's value after each token of prompt and response, on the plain model's states."""
    ids = torch.from_numpy(np.concatenate([step.prompt_ids, step.response_ids])).long()
    with torch.no_grad():
        states = plain_twin(policy)(ids[None], output_hidden_states=True).hidden_states[-1][0]
        return policy.critic(states).squeeze(-1).numpy()


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_values_are_read_at_the_last_prompt_token_and_before_each_token(kind: str, steps: list[Step]) -> None:
    policy = tiny_policy(kind)
    learner = make_learner(policy)
    by_step, by_token = learner.values(steps, "step"), learner.values(steps, "token")
    assert by_step.keys() == by_token.keys() == {step.id for step in steps}
    for step in steps:
        expected = plain_values(policy, step)
        prompt = len(step.prompt_ids)
        np.testing.assert_allclose(by_step[step.id], expected[prompt - 1 : prompt], atol=1e-5)
        np.testing.assert_allclose(by_token[step.id], expected[prompt - 1 : -1], atol=1e-5)


def test_a_value_does_not_know_what_was_sampled_after_it(steps: list[Step]) -> None:
    learner = make_learner(tiny_policy())
    step = steps[3]
    changed = step.response_ids.copy()
    changed[-1] = (changed[-1] + 1) % 40
    other = Step(trajectory_id="t", index=0, prompt_ids=step.prompt_ids, response_ids=changed, logprobs=step.logprobs)
    for scope in ("step", "token"):
        before, after = learner.values([step], scope)[step.id], learner.values([other], scope)[other.id]
        np.testing.assert_allclose(before, after, atol=1e-6)


def test_without_a_critic_nothing_is_read(steps: list[Step]) -> None:
    assert make_learner(tiny_policy()).values(steps, "none") == {}
    assert make_learner(tiny_policy()).values([], "step") == {}
