"""Against the real veRL, on CPU: `make test-verl` brings it, since it cannot live beside our transformers."""

import dataclasses
import importlib.util
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Algorithm, Inputs
from stepwell.errors import InvalidRecord, InvalidRequest
from stepwell.types import Group, Sampling
from tests.adapters.builders import group, step, trajectory, with_step

if importlib.util.find_spec("verl") is None:
    pytest.skip("veRL is not installed; `make test-verl` runs these", allow_module_level=True)

import torch
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer

from stepwell.adapters.verl import advantages, register, to_dataproto
from stepwell.trainer.collate import make_samples, whiten
from tests.policy.tiny import plain_twin, tiny_policy

GROUPS = [group("g", [0.0, 1.0], [0.5], [0.0, 0.0, 0.25]), group("h", [1.0], [-1.0, 0.5])]
UNREWARDED = dataclasses.replace(trajectory("t", [0.0]), reward=None)
ESTIMATORS = register()


def _with_values(data: DataProto, seed: int = 0) -> DataProto:
    """With what a critic might have said."""
    generator = torch.Generator().manual_seed(seed)
    data.batch["values"] = torch.randn(data.batch["response_mask"].shape, generator=generator)
    return data


def _inputs(data: DataProto, groups: list[Group], algorithm: Algorithm) -> dict[str, Any]:
    """The same values as our own trainer would have them."""
    steps = [s for g in groups for t in g.trajectories for s in t.steps]
    values = data.batch["values"].numpy()
    sizes = {"none": lambda s: 0, "step": lambda s: 1, "token": lambda s: len(s.response_ids)}
    return {s.id: values[row, : sizes[algorithm.needs_values](s)] for row, s in enumerate(steps)}


def test_prompts_end_and_responses_begin_at_the_same_column() -> None:
    data = to_dataproto(GROUPS, pad_token_id=7)
    data.check_consistency()
    assert data.batch["input_ids"].shape == (9, 4 + 3)
    assert data.batch["input_ids"][0].tolist() == [7, 7, 100, 101, 200, 7, 7]
    assert data.batch["attention_mask"][1].tolist() == [0, 1, 1, 1, 1, 1, 0]
    assert data.batch["position_ids"][1].tolist() == [0, 0, 1, 2, 3, 4, 4]
    assert data.batch["prompts"][1].tolist() == [7, 100, 101, 102]
    assert data.batch["responses"][1].tolist() == [200, 201, 7]
    assert data.batch["response_mask"][1].tolist() == [1, 1, 0]
    assert data.batch["rollout_log_probs"][1].tolist() == [-0.125, -0.25, 0.0]
    assert torch.equal(data.batch["old_log_probs"], data.batch["rollout_log_probs"])
    assert data.meta_info == {"temperature": 1.0}


def test_each_steps_reward_is_at_its_last_token_and_rows_say_whose_they_are() -> None:
    data = to_dataproto(GROUPS, pad_token_id=7)
    assert data.batch["token_level_rewards"][1].tolist() == [0.0, 1.0, 0.0]
    assert data.batch["token_level_rewards"].sum(-1).tolist() == [0, 1, 0.5, 0, 0, 0.25, 1, -1, 0.5]
    names = data.non_tensor_batch
    assert names["uid"].tolist() == ["g"] * 6 + ["h"] * 3
    assert names["trajectory_uid"][:3].tolist() == ["g-0", "g-0", "g-1"]
    assert names["step_uid"][1] == "g-0-1"
    assert names["step_index"].tolist() == [0, 1, 0, 0, 1, 2, 0, 0, 1]
    assert names["trajectory_reward"][[0, 1, 8]].tolist() == [1.0, 1.0, -0.5]


def test_padding_rows_have_no_weight_anywhere() -> None:
    data = _with_values(to_dataproto(GROUPS, pad_token_id=7, multiple_of=4))
    assert len(data) == 12
    assert data.non_tensor_batch["padding"].tolist() == [False] * 9 + [True] * 3
    assert data.batch["response_mask"][9:].sum() == 0
    assert data.batch["attention_mask"][9:].sum(-1).tolist() == [1, 1, 1]
    bare = _with_values(to_dataproto(GROUPS, pad_token_id=7))
    bare.batch["values"] = data.batch["values"][:9]
    for name in ALGORITHMS:
        padded, plain = (advantages(batch, ALGORITHMS[name]().build()) for batch in (data, bare))
        for whole, part in zip(padded, plain, strict=True):
            assert torch.equal(whole[:9], part)
            assert whole[9:].abs().sum() == 0


def test_steps_that_may_not_be_trained_on_count_but_are_masked() -> None:
    aborted = with_step(GROUPS[0].trajectories[0], 1, finish_reason="abort")
    groups = [dataclasses.replace(GROUPS[0], trajectories=(aborted, *GROUPS[0].trajectories[1:]))]
    data = to_dataproto(groups, pad_token_id=7)
    assert data.batch["response_mask"][1].sum() == 0
    assert data.batch["token_level_rewards"][1].sum() == 1.0
    found, _ = advantages(data, ALGORITHMS["grpo"]().build())
    assert found[0, 0] > 0
    assert found[1].abs().sum() == 0


def test_a_step_without_a_response_keeps_its_reward() -> None:
    silent = dataclasses.replace(trajectory("t", [1.0]), steps=(step("t", 0, 2, 0),))
    data = to_dataproto([Group(info=GROUPS[0].info, trajectories=(silent,))], pad_token_id=7)
    assert data.batch["token_level_rewards"].sum() == 1.0
    assert data.batch["response_mask"].sum() == 0


def test_a_trained_model_reads_such_a_row_as_the_step_alone() -> None:
    model = plain_twin(tiny_policy())
    small = [with_step(GROUPS[1].trajectories[1], 1, prompt_ids=[3, 4, 5], response_ids=[6, 7])]
    other = [with_step(small[0], 0, prompt_ids=[8, 9], response_ids=[1])]
    data = to_dataproto([Group(info=GROUPS[1].info, trajectories=tuple(other))], pad_token_id=0, multiple_of=3)
    batch = {name: data.batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    with torch.no_grad():
        padded = model(**batch).logits[1, 1 + 1 : 1 + 1 + 2]
        alone = model(torch.tensor([[3, 4, 5, 6, 7]])).logits[0, 2:4]
        assert torch.allclose(padded, alone, atol=1e-5)
        assert not model(**batch).logits[2].isnan().any()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_estimator_gives_what_our_trainer_gives_the_same_steps(name: str) -> None:
    data = _with_values(to_dataproto(GROUPS, pad_token_id=7))
    algorithm = ALGORITHMS[name]().build()
    values = _inputs(data, GROUPS, algorithm)
    credits = {c.step_id: c for g in GROUPS for c in algorithm.assign(g, Inputs(values=values))}
    samples = whiten(make_samples(GROUPS, credits, values), algorithm.whiten)
    done = ray_trainer.compute_advantage(data, adv_estimator=f"stepwell_{name}", config={})
    for row, sample in enumerate(samples):
        size = len(sample.advantages)
        np.testing.assert_allclose(done.batch["advantages"][row, :size], sample.advantages, atol=1e-6)
        assert done.batch["advantages"][row, size:].abs().sum() == 0
        targets = sample.value_targets
        np.testing.assert_allclose(done.batch["returns"][row, : len(targets)], targets, atol=1e-6)


def test_grpo_is_verls_own_where_each_trajectory_is_one_step() -> None:
    single = [group("g", [1.0], [0.0], [0.25]), group("h", [1.0], [1.0]), group("i", [3.0], [-2.0], [0.5], [0.0])]
    data = to_dataproto(single, pad_token_id=7)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        data.batch["token_level_rewards"], data.batch["response_mask"], data.non_tensor_batch["uid"]
    )
    ours, _ = advantages(data, ALGORITHMS["grpo"]().build())
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_token_ppo_is_verls_gae_where_each_trajectory_is_one_step() -> None:
    single = [Group(info=g.info, trajectories=g.trajectories) for g in [group("g", [1.0], [0.0]), group("h", [0.5])]]
    longer = [
        dataclasses.replace(
            g,
            trajectories=tuple(
                with_step(t, 0, response_ids=[5] * n, logprobs=[-0.5] * n) for n, t in enumerate(g.trajectories, 2)
            ),
        )
        for g in single
    ]
    data = _with_values(to_dataproto(longer, pad_token_id=7))
    mask = data.batch["response_mask"]
    theirs, returns = core_algos.compute_gae_advantage_return(
        data.batch["token_level_rewards"], data.batch["values"], mask, gamma=0.9, lam=0.8
    )
    ours, targets = advantages(data, ALGORITHMS["ppo"](gamma=0.9, lam=0.8).build())
    assert torch.allclose(ours, theirs * mask, atol=1e-5)
    assert torch.allclose(targets, returns * mask, atol=1e-5)


def test_without_names_each_row_is_a_trajectory_and_masked_tokens_inside_it_get_nothing() -> None:
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    data = DataProto.from_dict(
        tensors={"response_mask": mask, "token_level_rewards": rewards, "values": torch.ones(2, 3)},
        non_tensors={"uid": np.array(["g", "g"], object)},
    )
    found, _ = advantages(data, ALGORITHMS["grpo"]().build())
    assert (found != 0).int().tolist() == mask.tolist()
    _, returns = advantages(data, ALGORITHMS["ppo"]().build())
    assert returns.tolist() == [[1, 0, 1], [0, 0, 0]]


def test_the_second_trainers_keys_tell_what_is_a_trajectory() -> None:
    utils = pytest.importorskip("verl.trainer.ppo.v1.utils", reason="needs TransferQueue")
    register()
    data = to_dataproto(GROUPS, pad_token_id=7)
    expected, _ = advantages(data, ALGORITHMS["grpo"]().build())
    names = data.non_tensor_batch
    keys = [f"{t}_0_{i}" for t, i in zip(names.pop("trajectory_uid"), names.pop("step_index"), strict=True)]
    done = utils.compute_advantage_for_multi_trajectories(data, keys, adv_estimator="stepwell_grpo", config={})
    assert torch.equal(done.batch["advantages"], expected)


def test_registering_again_changes_nothing_and_other_settings_are_refused() -> None:
    before = ray_trainer.compute_advantage
    assert register() == ESTIMATORS == tuple(f"stepwell_{name}" for name in ALGORITHMS)
    assert ray_trainer.compute_advantage is before
    with pytest.raises(ValueError, match="already been registered"):
        register({"grpo": ALGORITHMS["grpo"](scale="none")})
    assert register({"dr_grpo": ALGORITHMS["grpo"](scale="none")}) == ("stepwell_dr_grpo",)


def test_verl_loads_the_estimators_by_itself_if_told_to() -> None:
    probe = (
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn as get; print(get('stepwell_steppo').__name__)"
    )
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "stepwell.adapters.verl.plugin"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", probe], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "estimate"


def test_an_estimator_outside_of_a_batch_and_a_missing_critic_are_explained() -> None:
    data = to_dataproto(GROUPS, pad_token_id=7)
    with pytest.raises(InvalidRequest, match="outside of veRL's compute_advantage"):
        core_algos.get_adv_estimator_fn("stepwell_grpo")(
            token_level_rewards=data.batch["token_level_rewards"], response_mask=data.batch["response_mask"]
        )
    with pytest.raises(InvalidRequest, match=r"critic\.enable=True"):
        advantages(data, ALGORITHMS["steppo"]().build())


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ([], "these 0 steps"),
        ([group("g", [])], "has no step"),
        ([dataclasses.replace(GROUPS[0], trajectories=(UNREWARDED,))], "no reward"),
        ([group("g", [1.0]), group("h", [1.0], sampling=Sampling(temperature=0.5))], r"\[0\.5, 1\.0\]"),
    ],
)
def test_what_cannot_be_a_batch_is_refused(groups: list[Group], why: str) -> None:
    with pytest.raises(InvalidRecord, match=why):
        to_dataproto(groups, pad_token_id=7)
