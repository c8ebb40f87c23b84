"""Against the real veRL, on CPU: `make test-verl` brings it, since it cannot live beside our transformers."""

import dataclasses
import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace
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
NAMES = [name.removeprefix("stepwell_") for name in ESTIMATORS]


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
    assert set(names["side"]) == {""}
    assert set(names["status"]) == {"terminated"}
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
    for name in NAMES:
        padded, plain = (advantages(batch, ALGORITHMS[name]().build()) for batch in (data, bare))
        for whole, part in zip(padded, plain, strict=True):
            assert torch.equal(whole[:9], part)
            assert whole[9:].abs().sum() == 0


@pytest.mark.parametrize("name", ["steppo", "ppo"])
def test_what_is_beside_the_agents_work_is_no_decision_and_a_truncated_trajectory_goes_on(name: str) -> None:
    cut = dataclasses.replace(with_step(trajectory("t", [0.0, 1.0, 2.0]), 2, side="state"), status="truncated")
    groups = [dataclasses.replace(GROUPS[0], trajectories=(cut,))]
    data = _with_values(to_dataproto(groups, pad_token_id=7))
    algorithm = ALGORITHMS[name](gamma=0.5, whiten="none").build()
    found, _ = advantages(data, algorithm)
    after, values = data.batch["values"][2, 0], data.batch["values"][1]
    assert found[2].abs().sum() == 0
    last = (1, 1) if name == "ppo" else (1, 0)
    assert torch.allclose(found[last], 1 + 2 + 0.5 * after - values[last[1]], atol=1e-6)


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


@pytest.mark.parametrize("name", NAMES)
def test_an_estimator_gives_what_our_trainer_gives_the_same_steps(name: str) -> None:
    data = _with_values(to_dataproto(GROUPS, pad_token_id=7))
    algorithm = ALGORITHMS[name]().build()
    values = _inputs(data, GROUPS, algorithm)
    credits = {c.step_id: c for g in GROUPS for c in algorithm.assign(g, Inputs(values=values))}
    samples = whiten(make_samples(GROUPS, credits, values), algorithm.whiten)
    done = ray_trainer.compute_advantage(data, adv_estimator=f"stepwell_{name}", config={})
    rows = data.non_tensor_batch["step_uid"].tolist()
    for row, sample in ((rows.index(sample.step_id), sample) for sample in samples):
        size = len(sample.advantages)
        np.testing.assert_allclose(done.batch["advantages"][row, :size], sample.advantages, atol=1e-6)
        assert done.batch["advantages"][row, size:].abs().sum() == 0
        targets = sample.value_targets
        np.testing.assert_allclose(done.batch["returns"][row, : len(targets)], targets, atol=1e-6)


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


SINGLE = [group("g", [1.0], [0.0], [0.25]), group("h", [1.0], [1.0]), group("i", [3.0], [-2.0], [0.5], [0.0])]
"""Each trajectory is one step, since verl takes every row for one."""


def _longer(groups: list[Group]) -> DataProto:
    """With responses of 1 to 4 tokens, prompts of one."""
    return to_dataproto(
        [
            dataclasses.replace(
                g,
                trajectories=tuple(
                    with_step(t, 0, response_ids=[5] * n, logprobs=[-0.5] * n) for n, t in enumerate(g.trajectories, 1)
                ),
            )
            for g in groups
        ],
        pad_token_id=7,
    )


@pytest.mark.parametrize("ours", [{"scale": "std"}, {"scale": "none"}], ids=["grpo", "dr_grpo"])
def test_grpo_and_dr_grpo_are_verls_own_for_responses_of_any_length(ours: dict[str, Any]) -> None:
    data = _longer(SINGLE)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        data.batch["token_level_rewards"],
        data.batch["response_mask"],
        data.non_tensor_batch["uid"],
        norm_adv_by_std_in_grpo=ours["scale"] == "std",
    )
    found, _ = advantages(data, ALGORITHMS["grpo"](**ours).build())
    assert torch.allclose(found, theirs, atol=1e-6)


def test_rloo_is_verls_own() -> None:
    data = _longer(SINGLE)
    theirs, _ = core_algos.compute_rloo_outcome_advantage(
        data.batch["token_level_rewards"], data.batch["response_mask"], data.non_tensor_batch["uid"]
    )
    found, _ = advantages(data, ALGORITHMS["rloo"]().build())
    assert torch.allclose(found, theirs, atol=1e-6)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_pp_is_verls_own_whitened(gamma: float) -> None:
    data = _longer(SINGLE)
    theirs, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        data.batch["token_level_rewards"], data.batch["response_mask"], config=SimpleNamespace(gamma=gamma)
    )
    found, _ = advantages(data, ALGORITHMS["reinforce_pp"](gamma=gamma).build())
    assert torch.allclose(found, theirs, atol=1e-6)


def test_reinforce_pp_with_a_group_baseline_is_verls_own_whitened() -> None:
    data = _longer(SINGLE)
    theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
        data.batch["token_level_rewards"], data.batch["response_mask"], data.non_tensor_batch["uid"]
    )
    found, _ = advantages(data, ALGORITHMS["reinforce_pp"](baseline="group").build())
    assert torch.allclose(found, theirs, atol=1e-6)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.5, 0.0)])
def test_token_ppo_over_several_steps_is_verls_gae_over_one_row_with_observations_masked(
    gamma: float, lam: float
) -> None:
    """One trajectory of steps of 1, 2 and 3 tokens is a row of 9, of which 3 are the environment's."""
    data = _with_values(to_dataproto([group("g", [0.5, -1.0, 2.0])], pad_token_id=7))
    ours, targets = advantages(data, ALGORITHMS["ppo"](gamma=gamma, lam=lam).build())
    values, rewards, mask = torch.zeros(1, 9), torch.zeros(1, 9), torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1, 1]])
    values[mask.bool()] = torch.cat([data.batch["values"][i, : i + 1] for i in range(3)])
    rewards[0, [0, 3, 8]] = torch.tensor([0.5, -1.0, 2.0])
    theirs, returns = core_algos.compute_gae_advantage_return(rewards, values, mask, gamma=gamma, lam=lam)
    sampled = data.batch["response_mask"].bool()
    assert torch.allclose(ours[sampled], theirs[mask.bool()], atol=1e-6)
    assert torch.allclose(targets[sampled], returns[mask.bool()], atol=1e-6)


@pytest.mark.parametrize("name", ["grpo", "steppo", "gigpo"])
def test_identity_9_neither_the_order_of_rows_nor_the_place_of_a_reward_in_its_row_matters(name: str) -> None:
    data = _with_values(to_dataproto(GROUPS, pad_token_id=7))
    straight, _ = advantages(data, ALGORITHMS[name]().build())
    rewards = data.batch["token_level_rewards"]
    data.batch["token_level_rewards"] = torch.zeros_like(rewards)
    data.batch["token_level_rewards"][:, 0] = rewards.sum(-1)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    data.reorder(order)
    found, _ = advantages(data, ALGORITHMS[name]().build())
    assert torch.allclose(found, straight[order], atol=1e-6)


def test_states_of_gigpo_are_the_prompts_of_the_rows_and_without_prompts_no_two_are_the_same() -> None:
    data = to_dataproto([group("g", [1.0], [0.0])], pad_token_id=7)
    shared, _ = advantages(data, ALGORITHMS["gigpo"](scale="none").build())
    assert shared[:, 0].tolist() == [1.0, -1.0]
    data.batch["prompts"][0, -1] += 1
    assert advantages(data, ALGORITHMS["gigpo"](scale="none").build())[0][:, 0].tolist() == [0.5, -0.5]
    data.batch.pop("prompts")
    assert advantages(data, ALGORITHMS["gigpo"](scale="none").build())[0][:, 0].tolist() == [0.5, -0.5]


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
    assert register() == ESTIMATORS
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


def test_every_algorithm_but_those_with_a_teacher_or_forked_siblings_is_an_estimator() -> None:
    apart = set(ALGORITHMS) - set(NAMES) - {"rtpo"}
    assert set(NAMES) >= {"capo", "gigpo", "grpo", "ppo", "reinforce_pp", "rloo", "seeupo", "steppo"}
    assert all(ALGORITHMS[name]().build().teacher for name in apart)
    for name in apart:
        with pytest.raises(InvalidRequest, match="train it here"):
            advantages(to_dataproto(GROUPS, pad_token_id=7), ALGORITHMS[name]().build())


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
