"""Several ranks make the update that one makes: weights, moments, metrics and scores, in double precision."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from stepwell.algorithms.objective import Objective
from stepwell.policy.ranks import ALONE
from stepwell.policy.weights import WEIGHTS_FILE, load_newest
from stepwell.trainer.checkpoint import Progress, load_checkpoint
from tests.trainer.builders import unpacked
from tests.trainer.ranked import on_ranks
from tests.trainer.ranked_work import (
    Arrays,
    Case,
    Outcome,
    all_trained,
    dtypes_in_a_pass,
    exported,
    given_others,
    gone_on,
    made_learner,
    poisoned,
    state_of,
    swept,
    warmed_up,
)

CASES = {
    "tied weights": Case("qwen2"),
    "merged, in one pass": Case(policy={"critic": "shared"}, learner={"tree": "on", "micro_batch_tokens": 1000}),
    "unmerged, in many passes": Case("qwen3", policy={"critic": "model"}, learner={"tree": "off"}),
    "no critic": Case(values=0, learner={"micro_batch_tokens": 9}),
    "adapters": Case(policy={"lora": {"rank": 4}, "gradient_checkpointing": True}),
    "the last layer": Case(layers=1, learner={"epochs": 2, "minibatch_steps": 4}),
    "a single sample": Case(samples=1),
    "means over all tokens": Case(objective=Objective(ratio="sqrt", entropy_coefficient=0.1)),
    "means over trajectories": Case(
        objective=Objective(ratio="sequence", aggregation="per_sequence", kl_coefficient=0.3)
    ),
}
ON_THREE = {name: CASES[name] for name in ("unmerged, in many passes", "a single sample")}


@cache
def alone() -> dict[str, Outcome]:
    return all_trained(ALONE, CASES)


@cache
def together(count: int) -> list[dict[str, Outcome]]:
    return on_ranks(count, all_trained, CASES if count == 2 else ON_THREE)


def assert_close(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], within: float = 1e-7) -> None:
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=within, atol=within, err_msg=name)


@pytest.mark.parametrize(("count", "name"), [*((2, name) for name in CASES), *((3, name) for name in ON_THREE)])
def test_ranks_make_the_update_that_one_makes(count: int, name: str) -> None:
    state, metrics, scores = alone()[name]
    for got_state, got_metrics, got_scores in (outcome[name] for outcome in together(count)):
        assert_close(got_state, state)
        for got, expected in zip(got_metrics, metrics, strict=True):
            assert unpacked(got) == pytest.approx(unpacked(expected), rel=1e-6, abs=1e-6)
        for got_row, row in zip(got_scores, scores, strict=True):
            np.testing.assert_allclose(got_row, row, atol=1e-6)


def test_a_warm_up_is_the_same_on_ranks() -> None:
    case = Case(policy={"critic": "model"})
    for got in on_ranks(2, warmed_up, case):
        assert_close(got, warmed_up(ALONE, case))


def test_in_half_precision_ranks_are_as_near_to_the_exact_update_as_one_is() -> None:
    rough, single = (Case(exact=False, policy={"precision": precision}) for precision in ("bfloat16", "float32"))
    exact = _gradient(all_trained(ALONE, {"": single})[""][0])
    one = _gradient(all_trained(ALONE, {"": rough})[""][0])
    (outcome, _) = on_ranks(2, all_trained, {"": rough})
    state = outcome[""][0]
    assert {array.dtype for array in state.values()} == {np.dtype("float32")}
    assert _distance(_gradient(state), exact) < 1.5 * _distance(one, exact)


def test_layers_are_gathered_in_half_precision_and_kept_in_full() -> None:
    case = Case(exact=False, policy={"precision": "bfloat16"}, learner={"sharding": {"reductions": "bfloat16"}})
    assert on_ranks(2, dtypes_in_a_pass, case) == [("bfloat16", "float32", "float32")] * 2


def test_an_update_turn_by_turn_is_the_same_on_ranks() -> None:
    case = Case("qwen2", samples=3, objective=Objective(ratio="geo"))
    state = swept(ALONE, case)
    for got in on_ranks(2, swept, case):
        assert_close(got, state)


def _gradient(state: Arrays) -> np.ndarray:
    return np.concatenate([array.ravel() for name, array in sorted(state.items()) if name.startswith("exp_avg of")])


def _distance(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(left - right))


# what goes wrong


def test_ranks_that_were_given_other_samples_refuse_instead_of_waiting_for_ever() -> None:
    assert all("given different samples" in why for why in on_ranks(2, given_others, Case()))


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all() -> None:
    case = Case(exact=False, objective=Objective(ratio="exact"))
    assert on_ranks(2, poisoned, case) == [poisoned(ALONE, case)] * 2
    changed, why, skipped = poisoned(ALONE, case)
    assert (changed, skipped) == (False, 1.0)
    assert "not finite" in why


# checkpoints


@pytest.mark.parametrize("counts", [(2, 1, 3), pytest.param((3, 2, 3), marks=pytest.mark.slow)])
def test_a_run_goes_on_from_a_checkpoint_with_any_number_of_ranks(tmp_path: Path, counts: tuple[int, ...]) -> None:
    """So many ranks make an update each; a process by itself makes all of them."""
    cases = {
        "whole": Case("qwen2", values=0),
        "parts": Case(policy={"critic": "model", "lora": {"rank": 2}}),
    }
    expected = [gone_on(ALONE, cases, tmp_path / "alone") for _ in counts]
    for count, right in zip(counts, expected, strict=True):
        arguments = cases, tmp_path / "ranks"
        for got in on_ranks(count, gone_on, *arguments) if count > 1 else [gone_on(ALONE, *arguments)]:
            for name, (state, taught) in right.items():
                assert_close(got[name][0], state)
                for got_row, row in zip(got[name][1], taught, strict=True):
                    np.testing.assert_allclose(got_row, row, atol=1e-6)
    learner = made_learner(cases["parts"])
    found = load_checkpoint(tmp_path / "ranks/parts", learner.policy, learner.optimizer)
    assert found == Progress(policy_version=3, lease_ids=("lease-3",))
    assert_close(state_of(learner), expected[-1]["parts"][0])
    served = tmp_path / "run"
    served.mkdir()
    (served / "checkpoints").symlink_to(tmp_path / "ranks/parts")
    assert load_newest(served, learner.policy) == 3


def test_sharded_weights_are_written_whole_for_other_programs(tmp_path: Path) -> None:
    case = Case(exact=False, policy={"critic": "model"})
    state, _ = on_ranks(2, exported, case, tmp_path)
    assert_close(load_file(tmp_path / WEIGHTS_FILE), state, within=0)
