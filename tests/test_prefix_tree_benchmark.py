"""The benchmark of prefix trees evaluates what it says it does; how fast is not asked here."""

import numpy as np
import pytest
import torch

from benchmarks import prefix_tree as benchmark
from benchmarks.prefix_tree import Case, load
from stepwell.policy.attention import Scores
from stepwell.policy.model import Policy
from stepwell.policy.tree_attention import BACKENDS, choose
from stepwell.prefix_tree.pack import WORTHWHILE
from stepwell.prefix_tree.tree import PrefixTree, merged
from tests.policy.tiny import tiny_policy

VOCABULARY = 1000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Policy:
    policy = tiny_policy()
    monkeypatch.setitem(load.MODELS, "tiny", lambda: policy)
    return policy


def _tree(workload: str, divisor: int) -> tuple[int, PrefixTree]:
    rows = [sample.token_ids for sample in load.WORKLOADS[workload](VOCABULARY, divisor)]
    return sum(map(len, rows)), merged(rows)


@pytest.mark.parametrize(
    ("workload", "flat", "tokens"),
    [("siblings", 189_440, 29_184), ("linear", 23_680, 4_096), ("GRPO", 16_384, 9_216)],
)
def test_workloads_have_the_tokens_of_the_specification(workload: str, flat: int, tokens: int) -> None:
    assert (_tree(workload, 1)[0], len(_tree(workload, 1)[1].ids)) == (flat, tokens)


@pytest.mark.parametrize("divisor", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("workload", ["siblings", "linear", "GRPO"])
def test_dividing_the_lengths_keeps_the_token_ratio(workload: str, divisor: int) -> None:
    (flat, tree), (less, smaller) = _tree(workload, 1), _tree(workload, divisor)
    assert (flat, len(tree.ids)) == (less * divisor, len(smaller.ids) * divisor)


def test_where_nothing_is_shared_the_tree_is_as_large_as_the_rows() -> None:
    flat, tree = _tree("nothing shared", 8)
    assert len(tree.ids) == flat
    assert len(set(tree.lengths)) > 1


def test_barely_shared_rows_are_those_from_which_on_merging_is_automatic() -> None:
    flat, tree = _tree("5 % shared", 1)
    assert len(tree.ids) / flat == WORTHWHILE


def test_a_bushy_tree_parts_as_often_as_it_says() -> None:
    rows = load.bushy(3, 2, 5)
    tree = merged(rows)
    assert sorted(tree.lengths) == [10] * 9
    assert len(tree.ids) == 3 * 5 + 9 * 5


@pytest.mark.parametrize(("divisor", "tokens"), [(1, 1022), (2, 510)])
def test_crumbs_part_at_every_token(divisor: int, tokens: int) -> None:
    tree = _tree("crumbs", divisor)[1]
    assert len(tree.ids) == len(tree.segments) == tokens


@pytest.mark.parametrize("backend", ["blocks", "dense", None])
def test_every_way_to_evaluate_rows_gives_one_gradient(small: Policy, backend: str | None) -> None:
    samples = load.siblings(small.vocabulary_size, 128, group=2)
    apart, together = load.evaluate(small, samples, "off"), load.evaluate(small, samples, "on", backend)
    assert (apart.tokens, together.tokens) == (370, 60)
    torch.testing.assert_close(together.gradient, apart.gradient, atol=1e-5, rtol=1e-4)
    assert apart.gradient.norm() > 0


@pytest.mark.parametrize("workload", sorted({case.workload for case in benchmark.FULL}))
def test_each_workload_has_rows_with_the_issues_goals(small: Policy, workload: str) -> None:
    rows = {row.name: row for row in benchmark._compared(Case("tiny", workload, 128, 1), "cpu")}
    goals = {name.partition(": ")[2]: row.goal for name, row in rows.items() if row.goal is not None}
    speed = {"speed-up / token ratio": 0.9} if workload in ("siblings", "linear") else {}
    expected = (
        {"auto / apart": 1.05} if workload == "nothing shared" else speed | {"relative gradient difference": 1e-5}
    )
    assert goals == expected
    assert all(name.startswith(f"tiny, {workload} 1/128: ") for name in rows)
    assert all(np.isfinite(row.value) for row in rows.values())


def test_trees_on_a_gpu_are_evaluated_by_flex_whose_mask_is_the_trees_own() -> None:
    tree = _tree("siblings", 64)[1]
    assert choose(tree, torch.device("cuda"), Scores(1.0), 256) == "flex"
    mask, dense = (BACKENDS[name](tree, torch.device("cpu")) for name in ("flex", "dense"))
    blocks = mask.block_mask(None).to_dense()[0, 0].bool()
    visible = torch.nn.functional.pad(dense.visible(None), (0, -len(tree.ids) % 128, 0, -len(tree.ids) % 128))
    assert torch.equal(blocks, visible.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).any(3).any(1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_device_cuda_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark._options(["--device", "cuda"])
    assert "--device cuda: torch finds no GPU here" in capsys.readouterr().err


def test_other_options_are_left_to_the_report() -> None:
    assert benchmark._options(["--quick", "--json", "out.json"]) == ("cpu", ["--quick", "--json", "out.json"])
