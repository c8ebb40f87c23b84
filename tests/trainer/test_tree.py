"""Training and scoring on prefix trees: the same numbers as a pass for each row, whatever is merged or packed."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from stepwell.algorithms.base import Objective
from stepwell.policy.model import Policy
from stepwell.prefix_tree.pack import Merging, pack
from stepwell.trainer.scoring import Scored, response_logprobs, state_values
from stepwell.trainer.sft import Demonstration, supervised_update
from stepwell.trainer.update import Learner
from stepwell.types import Ids, Sample, Step
from tests.policy.tiny import CONFIGS, exact_policy, plain_logprobs, plain_twin, random_ids, tiny_policy
from tests.trainer.builders import make_learner, unpacked

EXACT, SINGLE = 1e-10, 1e-5
TRAINER = {"clip_low": 0.4, "clip_high": 0.4, "old_logprobs": "trainer"}
OBJECTIVES = {
    "token": Objective(clip_low=0.05, clip_high=0.1, entropy_coefficient=0.1),
    "geo": Objective(ratio="geo", clip_low=3e-2, clip_high=4e-2, aggregation="per_trajectory"),
    "per token": Objective(aggregation="per_token", value_clip=0.0),
    "sqrt": Objective(ratio="sqrt", clip_low=0.1, clip_high=0.1),
    "exact": Objective(ratio="exact", clip_low=0.1, clip_high=0.3, aggregation="per_trajectory"),
    "sequence": Objective(ratio="sequence", clip_low=0.02, clip_high=0.03, aggregation="per_sequence"),
    "kl": Objective(kl_coefficient=0.3, dual_clip=3.0),
    "truncated": Objective(**TRAINER, correction="truncate", correction_cap=1.05),
    "masked": Objective(**TRAINER, correction="mask", correction_cap=1.2),
    "cispo": Objective(surrogate="cispo", clip_high=0.05, kl_coefficient=0.2, kl_estimator="k2"),
}
every_objective = pytest.mark.parametrize("name", OBJECTIVES)
every_kind = pytest.mark.parametrize("kind", sorted(CONFIGS))
TRUNK, OTHER = random_ids(30), random_ids(30, 1)
ROWS: Sequence[tuple[str, Ids, int, float]] = [
    # the steps of a trajectory, each of which begins with all before it
    *[("a", TRUNK[:end], start, 0.8) for start, end in ((4, 7), (10, 14), (16, 22))],
    # one that was forked from it and goes on differently, from the same prompt and from within a response
    *[("b", np.concatenate([TRUNK[:10], OTHER[:n]]), 10, 0.8) for n in (3, 5)],
    ("c", np.concatenate([TRUNK[:12], OTHER[5:11]]), 14, 0.8),
    # the same tokens again, with other credit, and at another temperature
    ("d", TRUNK[:14], 10, 0.8),
    ("d", TRUNK[:14], 10, 1.3),
    # a prompt whose last token is where it parts, and one that shares nothing
    ("e", np.concatenate([TRUNK[:3], OTHER[20:21], OTHER[:2]]), 4, 0.8),
    ("f", OTHER[11:16], 1, 0.8),
]
"""Trajectory, tokens, length of the prompt, and temperature."""
FLAT, MERGED = sum(len(ids) for _, ids, _, _ in ROWS), 41


@cache
def samples(values: str = "token") -> Sequence[Sample]:
    """Of the rows, somewhat off-policy; every number differs between rows, also at tokens that they share."""
    made, policy = [], tiny_policy("llama")
    for number, (trajectory, ids, prompt, temperature) in enumerate(ROWS):
        random, response = np.random.default_rng(number), len(ids) - prompt
        exactly = plain_logprobs(policy, ids, temperature)[np.arange(prompt - 1, len(ids) - 1), ids[prompt:]].numpy()
        supervised = {"step": 1, "token": response, "none": 0}[values]
        made.append(
            Sample(
                step_id=f"step-{number}",
                trajectory_id=trajectory,
                token_ids=ids,
                prompt_length=prompt,
                logprobs=exactly + random.normal(0, 0.1, response),
                old_logprobs=exactly + random.normal(0, 0.1, response),
                reference_logprobs=exactly + random.normal(0, 0.1, response),
                advantages=np.full(response, np.random.default_rng(ord(trajectory)).normal()),
                value_targets=random.normal(size=supervised),
                old_values=random.normal(size=supervised),
                temperature=temperature,
            )
        )
    return made


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    """What the first update's gradient was: AdamW's first moment is a tenth of it."""
    state = learner.optimizer.state
    named = [*learner.policy.model.named_parameters(), *learner.policy.critic.named_parameters()]
    return {name: state[p]["exp_avg"] / (1 - 0.9) for name, p in named if p in state}


def updated(policy: Policy, rows: Sequence[Sample], objective: Objective, tree: Merging, budget: int = 10**6):
    learner = make_learner(policy, tree=tree, micro_batch_tokens=budget)
    metrics = learner.update(rows, objective)
    return metrics, gradients(learner)


def alone(policy: Policy, rows: Sequence[Sample], objective: Objective):
    """Each row in a pass of its own; what `test_update` compares with the hand-written loss."""
    return updated(policy, rows, objective, "off", budget=1)


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    """Relative to the norm of each gradient; of one that nearly cancels out, to a tenth of the largest."""
    assert got.keys() == expected.keys()
    least = 0.1 * max(float(gradient.norm()) for gradient in expected.values())
    for name, gradient in expected.items():
        error = float((got[name] - gradient).double().norm()) / max(float(gradient.norm()), least)
        assert error <= tolerance, name


def test_the_rows_of_these_tests_share_most_of_their_tokens() -> None:
    assert FLAT > 3 * MERGED
    assert pack([s.token_ids for s in samples()], 10**6).tokens == MERGED


@every_objective
@pytest.mark.parametrize("tree", ["on", "off", "auto"])
def test_merging_changes_neither_gradient_nor_metrics_of_any_objective(name: str, tree: Merging) -> None:
    rows, objective = samples(), OBJECTIVES[name]
    metrics, expected = alone(tiny_policy("llama"), rows, objective)
    got_metrics, got = updated(tiny_policy("llama"), rows, objective, tree)
    assert_same(got, expected, SINGLE)
    assert unpacked(got_metrics) == pytest.approx(unpacked(metrics), rel=1e-5, abs=1e-6)
    assert got_metrics["tree_tokens"] == (FLAT if tree == "off" else MERGED)
    assert got_metrics["tree_ratio"] == got_metrics["tree_tokens"] / FLAT
    assert metrics["tree_ratio"] == 1


@pytest.mark.parametrize("name", sorted(OBJECTIVES.keys() - {"sequence"}))  # whose means are of single precision
@pytest.mark.parametrize("budget", [10**6, 40, 23])
def test_in_double_precision_merged_gradients_are_exact_in_micro_batches_of_any_size(name: str, budget: int) -> None:
    rows, objective = samples(), OBJECTIVES[name]
    _, expected = alone(exact_policy("qwen3"), rows, objective)
    _, got = updated(exact_policy("qwen3"), rows, objective, "on", budget)
    assert_same(got, expected, EXACT)


@pytest.mark.parametrize("name", ["token", "geo", "sqrt"])
def test_the_order_of_samples_changes_no_gradient_of_merged_rows(name: str) -> None:
    rows, objective = samples(), OBJECTIVES[name]
    _, expected = updated(exact_policy("llama"), rows, objective, "on")
    for seed, budget in ((0, 10**6), (1, 30), (2, 23)):
        order = np.random.default_rng(seed).permutation(len(rows))
        _, got = updated(exact_policy("llama"), [rows[i] for i in order], objective, "on", budget)
        assert_same(got, expected, EXACT)


@pytest.mark.parametrize("kind", ["gemma2", "mistral", "qwen3"])
@pytest.mark.parametrize("critic", ["head", "shared", "model"])
@pytest.mark.parametrize("values", ["step", "token"])
def test_every_kind_of_critic_learns_from_merged_rows_what_it_learns_from_rows_alone(kind, critic, values) -> None:
    settings, objective = {"critic": critic}, OBJECTIVES["token"]
    metrics, expected = alone(exact_policy(kind, settings), samples(values), objective)
    got_metrics, got = updated(exact_policy(kind, settings), samples(values), objective, "on")
    assert_same(got, expected, EXACT)
    assert got_metrics["value_loss"] == pytest.approx(metrics["value_loss"], rel=1e-6)
    assert any(name.startswith("trunk.") for name in got) == (critic == "model")


def test_logits_are_computed_once_where_rows_share_a_place_and_a_temperature() -> None:
    """Twice where temperatures differ; and nowhere that no loss reads them."""
    seen = []
    learner = make_learner(tiny_policy("llama"), tree="on")
    learner.update(samples("none"), Objective(), seen.append)
    (batch,) = seen
    read = {(tuple(ids[: at + 1]), heat) for _, ids, prompt, heat in ROWS for at in range(prompt - 1, len(ids) - 1)}
    assert len(batch.read) == len(batch.scales) == len(read) < len(batch.targets)


# scores


def scored() -> list[Scored]:
    return [Scored(ids[:prompt], ids[prompt:], temperature) for _, ids, prompt, temperature in ROWS]


PACKINGS: Sequence[tuple[Merging, int]] = [("on", 10**6), ("on", 23), ("off", 10**6), ("off", 1), ("auto", 40)]


@every_kind
def test_scores_of_merged_rows_are_those_of_the_plain_model_on_each(kind: str) -> None:
    policy, rows = exact_policy(kind), scored()
    expected = [plain_scores(policy, row) for row in rows]
    for tree, budget in PACKINGS:
        for got, one in zip(response_logprobs(policy, rows, budget, tree), expected, strict=True):
            np.testing.assert_allclose(got, one, rtol=1e-10, atol=1e-10)


def plain_scores(policy: Policy, row: Scored) -> np.ndarray:
    ids, start = np.concatenate([row.prompt_ids, row.response_ids]), len(row.prompt_ids) - 1
    every = plain_logprobs(policy, ids, float(np.float32(row.temperature)))
    return every[np.arange(start, len(ids) - 1), row.response_ids].numpy()


@pytest.mark.parametrize("critic", ["head", "shared", "model"])
def test_values_of_merged_rows_are_those_of_each_alone(critic: str) -> None:
    policy = exact_policy("mistral", {"critic": critic})
    rows, starts = [ids for _, ids, _, _ in ROWS], [prompt - 1 for _, _, prompt, _ in ROWS]
    expected = state_values(policy, rows, starts, 1, "off")
    assert [len(v) for v in expected] == [len(ids) - start for ids, start in zip(rows, starts, strict=True)]
    for tree, budget in PACKINGS:
        for got, one in zip(state_values(policy, rows, starts, budget, tree), expected, strict=True):
            np.testing.assert_allclose(got, one, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scope", ["step", "token"])
def test_a_learners_values_do_not_depend_on_merging(scope: str) -> None:
    steps = [
        Step(trajectory_id=t, index=i, prompt_ids=ids[:p], response_ids=ids[p:], logprobs=np.zeros(len(ids) - p))
        for i, (t, ids, p, _) in enumerate(ROWS)
    ]
    found = [make_learner(tiny_policy(), tree=tree).values(steps, scope) for tree in ("on", "off", "auto")]
    assert found[0].keys() == {step.id for step in steps}
    for other in found[1:]:
        for name, values in other.items():
            np.testing.assert_allclose(values, found[0][name], atol=1e-5)


HINT, POINTS, SPAN = [38, 39, 38, 37], (4, 11, 12, 20), 6


def comb(hinted: bool = True) -> list[Scored]:
    """A teacher's rows: at several points of one trajectory, a hint and then what was said there."""
    hint = np.array(HINT if hinted else [], np.int32)
    return [Scored(np.concatenate([TRUNK[:at], hint]), TRUNK[at : at + SPAN]) for at in POINTS]


def test_a_teachers_rows_are_a_comb_of_which_the_trunk_is_computed_once() -> None:
    rows = [np.concatenate([row.prompt_ids, row.response_ids]) for row in comb()]
    packing = pack(rows, 10**6)
    teeth = len(POINTS) * (len(HINT) + SPAN)
    assert packing.tokens == POINTS[-1] + teeth
    assert packing.flat_tokens == sum(POINTS) + teeth
    with_student = pack([*rows, TRUNK], 10**6)
    assert with_student.tokens == len(TRUNK) + teeth


def test_a_comb_has_the_scores_of_the_plain_model_and_without_hints_the_students_own() -> None:
    policy = exact_policy("qwen3")
    for row, got in zip(comb(), response_logprobs(policy, comb(), 10**6, "on"), strict=True):
        np.testing.assert_allclose(got, plain_scores(policy, row), rtol=1e-10, atol=1e-10)
    (own,) = response_logprobs(policy, [Scored(TRUNK[:1], TRUNK[1:])], 10**6)
    for at, got in zip(POINTS, response_logprobs(policy, comb(hinted=False), 10**6), strict=True):
        np.testing.assert_allclose(got, own[at - 1 : at - 1 + SPAN], rtol=1e-10, atol=1e-10)


# warm-up


@every_kind
def test_demonstrations_that_begin_alike_give_the_gradient_of_each_alone(kind: str) -> None:
    rows = []
    for number, (_, ids, prompt, _) in enumerate(ROWS):
        mask = np.arange(len(ids)) >= prompt
        mask[prompt + 1 : prompt + 2] = number % 2  # not all of them, nor the same of rows that share them
        rows.append(Demonstration(ids, mask))
    policy = exact_policy(kind)
    twin, terms = plain_twin(policy), []
    for row in rows:
        logp = twin(torch.from_numpy(row.ids.astype(np.int64))[None]).logits[0].log_softmax(-1)
        terms += [-logp[i - 1, int(row.ids[i])] for i in np.flatnonzero(row.mask)]
    expected = torch.stack(terms).mean()
    expected.backward()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    optimizer = torch.optim.SGD(policy.trainable_parameters(), lr=1.0)
    loss = supervised_update(policy, optimizer, rows, grad_clip=1e9)
    assert loss == pytest.approx(expected.item(), rel=EXACT)
    moved = {name: before[name] - p.detach() for name, p in policy.model.named_parameters()}
    assert_same(moved, {name: p.grad for name, p in twin.named_parameters()}, EXACT)


def test_a_sample_of_a_row_that_is_there_twice_pulls_as_much_as_both() -> None:
    """Same tokens with opposite advantages cancel out: what is merged is the tokens, never the credit."""
    one = replace(samples("none")[1], advantages=np.ones(4), logprobs=np.full(4, -2.0), old_logprobs=np.full(4, -2.0))
    free = Objective(clip_low=1.0, clip_high=1e9)
    other = replace(one, step_id="again", trajectory_id="z", advantages=-one.advantages)
    _, got = updated(exact_policy("llama"), [one, other], free, "on")
    _, single = updated(exact_policy("llama"), [one], free, "on")
    assert max(float(g.norm()) for g in single.values()) > 0.1
    assert all(float(g.abs().max()) < 1e-12 for g in got.values())


def test_scores_take_the_logits_of_a_place_once_for_all_rows_that_read_it_at_one_temperature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, read = tiny_policy(), []
    evaluate = policy.logits
    monkeypatch.setattr(policy, "logits", lambda hidden: read.append(len(hidden)) or evaluate(hidden))
    prompt, response = random_ids(9, 1), random_ids(5, 2)
    scores = response_logprobs(policy, [Scored(prompt, response, t) for t in (1.0, 1.0, 0.5, 1.0)], 1000)
    assert sum(read) == 2 * len(response)
    assert scores[0].tolist() == scores[1].tolist() == scores[3].tolist() != scores[2].tolist()
