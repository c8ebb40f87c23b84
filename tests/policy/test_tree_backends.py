"""Back ends give what the reference gives, on trees that fill the tiles of their kernels and on such that fill none.

FlexAttention's compiled kernel is for GPUs: here are its masks, and its forward pass evaluated eagerly.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask, flex_attention

from stepwell.policy.attention import AttentionPlan, Scores
from stepwell.policy.tree_attention import BACKENDS, choose, flex, laid_out
from stepwell.policy.tree_attention.blocks import Blocks
from stepwell.policy.tree_attention.dense import Dense
from stepwell.policy.tree_attention.flex import Flex
from stepwell.prefix_tree.tree import PrefixTree, merged, separate
from stepwell.types import Ids
from tests.policy.tiny import exact_policy, plain_twin, random_ids
from tests.prefix_tree.forests import forests, ids

CPU = torch.device("cpu")
ROWS = [ids(row) for row in ([1, 2, 3, 9, 9], [1, 2, 3, 8, 9, 9], [1, 2, 7], [1, 2, 3, 8, 5], [4, 2, 3])]
SMALL = merged(ROWS)
LENGTHS = (1200, 300, 300, 40, 1, 5)
"""Of segments that fill several tiles of a kernel, and of such that fill none."""
WINDOWS = [None, 2, 3, 100, 513, 700, 5000]


def large_tree() -> PrefixTree:
    trunk = random_ids(LENGTHS[0])
    ends = [np.full(length, 50 + number, np.int32) for number, length in enumerate(LENGTHS[1:])]
    at = [600, 600, 600, 100, 0]
    return merged([trunk, *(np.concatenate([trunk[:n], end]) for n, end in zip(at, ends, strict=True))])


def attended(plan: AttentionPlan, inputs: Sequence[Tensor], scores: Scores, grad: Tensor) -> list[Tensor]:
    """Output, and gradients of query, key and value."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = plan.attend(0, *leaves, scores)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]
)
def test_long_segments_have_the_attention_and_the_gradients_of_the_reference(dtype, tolerance: float, window) -> None:
    tree = large_tree()
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(heads, len(tree.ids), 16, generator=random, dtype=dtype) for heads in (4, 2, 2))
    grads = torch.randn(q.shape, generator=random, dtype=dtype), torch.ones((), dtype=dtype).expand_as(q)
    for grad in grads:
        expected = attended(Dense(tree, CPU), (q, k, v), Scores(0.25, window), grad)
        got = attended(Blocks(tree, CPU), (q, k, v), Scores(0.25, window), grad)
        for one, other in zip(got, expected, strict=True):
            assert one.dtype == dtype
            assert float((one - other).double().norm() / other.double().norm()) < tolerance


def test_a_window_of_one_token_gives_each_its_own_value_and_no_gradient_to_scores() -> None:
    tree = large_tree()
    q, k, v = (torch.randn(heads, len(tree.ids), 16, dtype=torch.float64) for heads in (4, 2, 2))
    out, dq, dk, _ = attended(Blocks(tree, CPU), (q, k, v), Scores(0.25, 1), torch.randn_like(q))
    torch.testing.assert_close(out, v.repeat_interleave(2, dim=0), atol=1e-14, rtol=1e-14)
    assert float(dq.abs().max()) < 1e-13
    assert float(dk.abs().max()) < 1e-13


@given(forests(alphabet=3))
def test_a_segments_tokens_are_queries_once_with_themselves_and_once_with_each_segment_before_them(rows) -> None:
    tree = merged(rows)
    seen = torch.zeros(len(tree.ids), len(tree.ids), dtype=torch.int64)
    for block in Blocks(tree, CPU).blocks:
        size = (block.queries.stop - block.queries.start) // block.count
        for number in range(block.count):
            at = slice(block.queries.start + number * size, block.queries.start + (number + 1) * size)
            if block.own:
                seen[at, at] += torch.ones(size, size, dtype=torch.int64).tril()
            else:
                seen[at, block.keys] += 1
    assert torch.equal(seen, Dense(tree, CPU).visible(None).long())


def test_what_blocks_cannot_do_is_an_error_that_says_so() -> None:
    with pytest.raises(TypeError, match="for CPUs"):
        Blocks(SMALL, torch.device("meta"))
    x = torch.zeros(2, len(SMALL.ids), 8)
    with pytest.raises(TypeError, match="softcap"):
        Blocks(SMALL, CPU).attend(0, x, x, x, Scores(1.0, softcap=2.0))


@pytest.mark.parametrize(
    ("tree", "device", "softcap", "backend"),
    [
        (large_tree(), "cpu", None, "blocks"),
        (large_tree(), "cpu", 30.0, "dense"),
        (merged([ids([1, 2, 3]), ids([1, 2, 4])]), "cpu", None, "dense"),
        (separate([random_ids(200, seed) for seed in range(4)]), "cpu", None, "blocks"),
        (large_tree(), "cuda", None, "flex"),
        (large_tree(), "cuda", 30.0, "flex"),
    ],
)
def test_the_back_end_is_chosen_by_device_model_and_tree(tree: PrefixTree, device: str, softcap, backend: str) -> None:
    chosen = choose(tree, torch.device(device), Scores(1.0, softcap=softcap), 256)
    assert chosen == backend
    assert chosen in BACKENDS


# FlexAttention


@settings(max_examples=30)
@given(forests(), st.none() | st.integers(1, 12))
def test_the_block_mask_shows_what_the_reference_shows(rows: list[Ids], window: int | None) -> None:
    tree = merged(rows)
    assert torch.equal(whole(Flex(tree, CPU), window, len(tree.ids)), Dense(tree, CPU).visible(window))


def whole(plan: Flex, window: int | None, tokens: int) -> Tensor:
    return create_mask(plan.block_mask(window).mask_mod, 1, 1, tokens, tokens)[0, 0]


@pytest.mark.parametrize("window", WINDOWS)
def test_blocks_of_a_large_mask_are_computed_iff_something_in_them_is_seen(window: int | None) -> None:
    tree = large_tree()
    mask, visible = Flex(tree, CPU).block_mask(window), Dense(tree, CPU).visible(window)
    assert torch.equal(whole(Flex(tree, CPU), window, len(tree.ids)), visible)
    (rows, columns), blocks = mask.BLOCK_SIZE, mask.to_dense()[0, 0].bool()
    padded = torch.zeros(blocks.shape[0] * rows, blocks.shape[1] * columns, dtype=torch.bool)
    padded[: len(visible), : len(visible)] = visible
    assert torch.equal(padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).any(-1).any(1), blocks)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", ["gemma2", "mistral", "qwen3"])
@torch.no_grad()
def test_flex_gives_the_logits_of_the_plain_model_with_windows_groups_and_softcap(kind: str, monkeypatch) -> None:
    monkeypatch.setattr(flex, "_kernel", lambda: flex_attention)
    policy = exact_policy(kind)
    twin = plain_twin(policy)
    packed = *laid_out(SMALL)[:2], Flex(SMALL, CPU)
    got = policy.logits(policy.hidden(*packed))
    for number, row in enumerate(ROWS):
        expected = twin(torch.from_numpy(row).long()[None]).logits[0]
        torch.testing.assert_close(got[torch.from_numpy(SMALL.places(number))], expected, atol=1e-10, rtol=1e-10)
