"""A prefix tree changes no number: what is computed of merged rows is what each row gives alone.

Errors are relative to the norm of a whole quantity (all logits, one parameter's gradient), against the plain model in
double precision. Measured over hundreds of random forests, by every back end alike: in double precision up to 2e-14; in
single 5e-7 in logits and log-probabilities, 2e-6 in values, 7e-6 in gradients, as much as the plain model in single.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stepwell.policy.attention import AttentionPlan, Scores, masked_attention
from stepwell.policy.model import Policy
from stepwell.policy.tree_attention import laid_out
from stepwell.policy.tree_attention.blocks import Blocks
from stepwell.policy.tree_attention.dense import Dense
from stepwell.prefix_tree.tree import PrefixTree, merged
from tests.policy.rows import Outcome, alone, plain, together
from tests.policy.tiny import CONFIGS, exact_policy, plain_twin, random_ids, tiny_policy
from tests.prefix_tree.forests import forests, ids

CPU = torch.device("cpu")
EXACT, SINGLE = 1e-10, 1e-5
TOLERANCES = {"float64": EXACT, "float32": SINGLE}
LONG = random_ids(90).tolist()
CASES = {
    "one token": [[3]],
    "single tokens, twice": [[3], [5], [3]],
    "duplicates": [[1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 3]],
    "prefixes of each other, longest first": [[1, 2, 3, 4], [1, 2, 3], [1, 2], [1]],
    "prefixes of each other, shortest first": [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]],
    "siblings": [[1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 7]],
    "the steps of a long trajectory": [LONG[:n] for n in (5, 30, 64, 65, 90)],
    "nothing shared": [[1, 2], [3, 2, 1], [4], [5, 2]],
}
BRANCHES = [ids(row) for row in ([1, 2, 3, 9, 9], [1, 2, 3, 8, 9, 9], [1, 2, 7], [1, 2, 3, 8, 5], [4, 2, 3])]
every_kind = pytest.mark.parametrize("kind", sorted(CONFIGS))
every_dtype = pytest.mark.parametrize("dtype", sorted(TOLERANCES))
some_rows = settings(max_examples=6, derandomize=True)


@cache
def policy_of(kind: str, dtype: str = "float64", critic: str = "head") -> Policy:
    """Tests leave it as it is."""
    make = exact_policy if dtype == "float64" else tiny_policy
    policy = make(kind, settings={"critic": critic})
    if policy.own_critic:
        with torch.no_grad():
            for parameter in policy.critic.trunk.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape))  # no longer the policy
    return policy


def plans(tree: PrefixTree, kind: str) -> list[AttentionPlan | None]:
    """All that a CPU can train with; None: what is chosen."""
    return [None, Dense(tree, CPU), *([] if CONFIGS[kind][1].get("attn_logit_softcapping") else [Blocks(tree, CPU)])]


# equality with the plain model


@every_kind
@every_dtype
@some_rows
@given(rows=forests(most=6, longest=9, alphabet=3), critic=st.sampled_from(["head", "shared", "model"]))
def test_numbers_and_gradients_are_those_of_the_plain_model_on_each_row(kind, dtype, rows, critic: str) -> None:
    expected = plain(policy_of(kind, "float64", critic), rows)
    for plan in plans(merged(rows), kind):
        together(policy_of(kind, dtype, critic), rows, plan).assert_is(expected, TOLERANCES[dtype])


@every_kind
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_merged_rows_have_the_logits_of_the_plain_model_on_each_row(kind: str, case: str) -> None:
    policy = tiny_policy(kind)
    twin, rows = plain_twin(policy), [ids(row) for row in CASES[case]]
    tree = merged(rows)
    got = policy.logits(policy.hidden(*laid_out(tree)))
    for number, row in enumerate(rows):
        expected = twin(torch.from_numpy(row).long()[None]).logits[0]
        torch.testing.assert_close(got[torch.from_numpy(tree.places(number))], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_answers_to_one_prompt_are_a_tree_of_two_levels_whose_first_tokens_the_prompt_predicts(kind: str) -> None:
    prompt = random_ids(12)
    answers = [random_ids(n, seed) for seed, n in enumerate((5, 1, 7, 5), start=1)]
    rows, policy = [np.concatenate([prompt, answer]) for answer in answers], policy_of(kind)
    tree = merged(rows)
    assert len(tree.ids) == len(prompt) + sum(map(len, answers))
    assert {s.depth for s in tree.segments} == {0, len(prompt)}
    together(policy, rows).assert_is(plain(policy, rows), EXACT)
    at = {int(tree.places(number)[len(prompt) - 1]) for number in range(len(rows))}
    assert at == {len(prompt) - 1}  # one token, the prompt's last, predicts what every answer begins with


@every_kind
def test_the_order_of_rows_changes_no_number_of_any(kind: str) -> None:
    policy, tree = policy_of(kind), merged(BRANCHES)
    hidden = policy.hidden(*laid_out(tree)).detach()
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [1, 1, 3, 0, 2, 4, 4]):
        other = merged([BRANCHES[i] for i in order])
        states = policy.hidden(*laid_out(other)).detach()
        for number, row in enumerate(order):
            expected = hidden[torch.from_numpy(tree.places(row))]
            got = states[torch.from_numpy(other.places(number))]
            torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)


@every_kind
def test_a_forest_is_what_its_trees_are_apart(kind: str) -> None:
    policy, others = policy_of(kind), [ids([7, *row]) for row in ([1, 2], [1, 3, 3], [5])]
    hidden = policy.hidden(*laid_out(merged([*BRANCHES, *others])))
    forest = merged([*BRANCHES, *others])
    for rows, first in ((BRANCHES, 0), (others, len(BRANCHES))):
        tree = merged(rows)
        states = policy.hidden(*laid_out(tree))
        for number in range(len(rows)):
            got = hidden[torch.from_numpy(forest.places(first + number))]
            torch.testing.assert_close(got, states[torch.from_numpy(tree.places(number))], atol=1e-12, rtol=1e-12)


# mistakes that these comparisons find


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A plan by a mask: who sees whom without a window, and where tokens stand when a window is counted."""

    visible: Tensor
    positions: Tensor

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        visible = self.visible
        if scores.window is not None:
            visible = visible & (self.positions[:, None] - self.positions < scores.window)
        return masked_attention(query[None], key[None], value[None], visible, scores)[0]


@pytest.fixture(scope="module")
def expected() -> dict[str, Outcome]:
    return {kind: plain(policy_of(kind), BRANCHES) for kind in CONFIGS}


TREE = merged(BRANCHES)
VISIBLE, DEPTHS, PLACES = (
    Dense(TREE, CPU).visible(None),
    torch.from_numpy(TREE.positions),
    torch.arange(len(TREE.ids)),
)
EARLIER = torch.ones_like(VISIBLE).tril()


@every_kind
def test_the_right_mask_passes_the_comparison_that_mistakes_fail(kind: str, expected) -> None:
    together(policy_of(kind), BRANCHES, Shown(VISIBLE, DEPTHS)).assert_is(expected[kind], EXACT)


@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
@pytest.mark.parametrize("there", [False, True], ids=["shown", "hidden"])
def test_a_single_pair_of_tokens_too_many_or_too_few_fails_the_comparison(kind: str, there: bool, expected) -> None:
    pairs = (EARLIER & (VISIBLE if there else ~VISIBLE)).fill_diagonal_(False)
    pairs &= (DEPTHS[:, None] - DEPTHS).abs() < 4  # beyond that, mistral's window hides it on purpose
    for i, j in pairs.nonzero().tolist():
        mask = VISIBLE.clone()
        mask[i, j] = not there
        with pytest.raises(AssertionError):
            together(policy_of(kind), BRANCHES, Shown(mask, DEPTHS)).assert_is(expected[kind], SINGLE)


@every_kind
def test_rows_that_see_all_that_stands_before_them_fail_the_comparison(kind: str, expected) -> None:
    with pytest.raises(AssertionError):
        together(policy_of(kind), BRANCHES, Shown(EARLIER, DEPTHS)).assert_is(expected[kind], SINGLE)


@every_kind
def test_positions_that_count_places_instead_of_depth_fail_the_comparison(kind: str, expected) -> None:
    for plan in plans(TREE, kind):
        with pytest.raises(AssertionError):
            together(policy_of(kind), BRANCHES, plan, positions=PLACES).assert_is(expected[kind], SINGLE)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "mistral"])
def test_windows_that_count_places_instead_of_depth_fail_the_comparison(kind: str, expected) -> None:
    with pytest.raises(AssertionError):
        together(policy_of(kind), BRANCHES, Shown(VISIBLE, PLACES)).assert_is(expected[kind], SINGLE)


@pytest.mark.parametrize("backend", [Dense, Blocks])
def test_a_segment_whose_subtree_is_too_long_fails_the_comparison(backend, expected) -> None:
    """What stands behind it then sees it, as a sibling would."""
    wrong = 0
    for number, segment in enumerate(TREE.segments):
        if segment.end < len(TREE.ids):
            grown = replace(segment, end=segment.end + 1)
            tree = replace(TREE, segments=(*TREE.segments[:number], grown, *TREE.segments[number + 1 :]))
            with pytest.raises(AssertionError):
                together(policy_of("llama"), BRANCHES, backend(tree, CPU)).assert_is(expected["llama"], SINGLE)
            wrong += 1
    assert wrong > 3


# how a policy is set up


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_models_dropout_is_off_and_changes_nothing(checkpointing: bool) -> None:
    settings = {"gradient_checkpointing": checkpointing}
    without = exact_policy("qwen2", settings)
    policy = exact_policy("qwen2", settings, attention_dropout=0.5)
    attentions = [module for name, module in policy.model.named_modules() if name.endswith("self_attn")]
    assert [module.attention_dropout for module in attentions] == [0.5, 0.5]
    assert not policy.model.training
    assert not any(module.training for module in attentions)
    first, again = together(policy, BRANCHES), together(policy, BRANCHES)
    again.assert_is(first, 0.0)
    first.assert_is(together(without, BRANCHES), 0.0)


@pytest.mark.parametrize("kind", ["gemma2", "mistral", "qwen3"])
def test_computing_activations_twice_changes_no_gradient(kind: str) -> None:
    once = policy_of(kind)
    twice = exact_policy(kind, {"gradient_checkpointing": True})
    calls: list[int] = []
    for name, module in twice.model.named_modules():
        if name.endswith("self_attn"):
            module.register_forward_pre_hook(lambda *_: calls.append(1))
    for plan in plans(TREE, kind):
        calls.clear()
        together(twice, BRANCHES, plan).assert_is(together(once, BRANCHES, plan), 1e-14)
        assert len(calls) == 4  # two layers, forward and again before backward


@every_kind
def test_in_bfloat16_merging_errs_about_as_much_as_rows_alone_do(kind: str) -> None:
    """Measured: up to 0.005 in log-probabilities (alone: 0.005), 0.06 in the gradient of one parameter (alone: 0.04),
    and 0.9 to 1.4 times the mean error of rows alone."""
    half, expected = tiny_policy(kind, settings={"precision": "bfloat16"}), plain(policy_of(kind), BRANCHES)
    by_itself = alone(half, BRANCHES).errors(expected)
    for plan in plans(TREE, kind):
        merged_errors = together(half, BRANCHES, plan).errors(expected)
        assert merged_errors["logprobs"] < 0.01
        assert max(merged_errors.values()) < 0.1
        assert np.mean(list(merged_errors.values())) < 2 * np.mean(list(by_itself.values()))


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_adapters_get_the_gradient_that_rows_alone_give_them(kind: str) -> None:
    policy = exact_policy(kind, {"lora": {"rank": 3}})
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))  # new ones add nothing
    expected = alone(policy, BRANCHES)
    assert sum("lora_" in name for name in expected.gradients) == len(policy.trainable_parameters()) == 28
    for plan in plans(TREE, kind):
        together(policy, BRANCHES, plan).assert_is(expected, EXACT)
