"""Against the real TRL: its trainers take our rows and make an update of a tiny model with them."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer

from stepwell.adapters.trl import Replay, conversations, preferences, rollouts
from stepwell.algorithms.grpo import group_advantages
from stepwell.algorithms.rloo import leave_one_out
from stepwell.errors import NotFound
from stepwell.types import Group, GroupInfo, Step, Trajectory, TrajectoryInfo
from tests.fakes.models import CHATML, tiny_tokenizer
from tests.pool.archive.builders import group_of, searching

VOCABULARY = 300
_QUIET: dict[str, Any] = {
    "report_to": [],
    "use_cpu": True,
    "max_steps": 1,
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_steps": 1,
    "learning_rate": 0.01,
    "activation_checkpointing": False,
    "bf16": False,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(), eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    made.chat_template = CHATML
    return made


def _model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=512, **sizes)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def _talk(name: str, reward: float | None, seed: int = 0, drifts: bool = False) -> Trajectory:
    """Two steps; between them the environment says two tokens. All log-probabilities are told."""
    draw = np.random.default_rng(seed)
    first = draw.integers(1, 250, 3).tolist()
    said = draw.integers(1, 250, (2, 2)).tolist()
    second = [9, 9, 9] if drifts else [*first, *said[0], 8, 8]
    steps = tuple(
        Step(
            id=f"{name}-{index}",
            trajectory_id=name,
            index=index,
            prompt_ids=prompt,
            response_ids=response,
            logprobs=[-0.5, -0.25],
            parent_id=f"{name}-0" if index else "",
        )
        for index, (prompt, response) in enumerate(zip((first, second), said, strict=True))
    )
    info = TrajectoryInfo(id=name, group_id="g")
    return Trajectory(info=info, steps=steps, step_rewards=(0.0, reward or 0.0), reward=reward, status="terminated")


def _group(name: str, *members: Trajectory) -> Group:
    return Group(info=GroupInfo(id=name, task_id="task", size=len(members)), trajectories=members)


def test_a_trajectory_is_one_sequence_with_the_environments_tokens_masked() -> None:
    talk = _talk("t", 0.5)
    (row,) = rollouts([_group("g", talk)])
    first, second = talk.steps
    assert row["input_ids"] == [*second.prompt_ids, *second.response_ids]
    assert row["completion_mask"] == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert row["logprobs"] == [0, 0, 0, -0.5, -0.25, 0, 0, -0.5, -0.25]
    assert (row["prompt_length"], row["reward"], row["temperature"]) == (len(first.prompt_ids), 0.5, 1.0)
    assert (row["trajectory_id"], row["group_id"], row["task_id"]) == ("t", "g", "task")


def test_a_step_that_may_not_be_trained_on_is_masked_too() -> None:
    talk = _talk("t", 0.5)
    aborted = dataclasses.replace(talk.steps[0], finish_reason="abort")
    (row,) = rollouts([_group("g", dataclasses.replace(talk, steps=(aborted, talk.steps[1])))])
    assert row["completion_mask"] == [0, 0, 0, 0, 0, 0, 0, 1, 1]


def test_a_trajectory_whose_tokens_drifted_is_no_row() -> None:
    assert rollouts([_group("g", _talk("t", 1.0, drifts=True))]).num_rows == 0
    assert rollouts([]).num_rows == 0


def test_grpo_makes_an_update_of_replayed_groups(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    groups = [_group(f"g{n}", _talk("a", 1.0, n), _talk("b", 0.0, n + 10), _talk("c", 0.5)) for n in range(2)]
    replay = Replay(groups, size=2)
    model = _model()
    before = model.lm_head.weight.clone()
    config = GRPOConfig(output_dir=str(tmp_path), num_generations=2, per_device_train_batch_size=4, beta=0.0, **_QUIET)
    trainer = GRPOTrainer(
        model, replay.rewards, config, replay.dataset, processing_class=tokenizer, rollout_func=replay
    )
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["reward"] == 0.5
    assert log["completions/mean_length"] == 4.0
    assert log["reward_std"] > 0
    assert not torch.equal(model.lm_head.weight, before)


@pytest.mark.parametrize(
    ("trainer", "settings", "advantages"),
    [
        (GRPOTrainer, GRPOConfig, partial(group_advantages, eps=1e-4)),
        (GRPOTrainer, partial(GRPOConfig, scale_rewards="none"), partial(group_advantages, scale="none")),
        (RLOOTrainer, RLOOConfig, leave_one_out),
    ],
    ids=["grpo", "dr_grpo", "rloo"],
)
def test_the_advantages_of_a_group_are_those_that_trl_trains_with(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerFast,
    trainer: type[Any],
    settings: Callable[..., Any],
    advantages: Callable[[npt.ArrayLike], npt.NDArray[np.float64]],
) -> None:
    earned = [1.0, 0.0, 0.25, 3.0, -2.0, -2.0, 0.5, 0.5]

    def reward(completions: list[str], **_: Any) -> list[float]:
        return earned[: len(completions)]

    sizes = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 2}
    config = settings(output_dir=str(tmp_path), beta=0.0, **sizes, **_QUIET)
    prompts = Dataset.from_dict({"prompt": ["a", "b"]})
    made = trainer(_model(), reward, config, train_dataset=prompts, processing_class=tokenizer)
    made.train()
    (rewards,) = made._logs["rewards"].values()
    assert list(rewards) == earned
    ours = np.concatenate([advantages(earned[:4]), advantages(earned[4:])])
    np.testing.assert_allclose(list(made._logs["advantages"]), ours, atol=1e-6)


def test_each_rollout_of_a_group_comes_in_turn() -> None:
    replay = Replay([_group("g", _talk("a", 1.0, 1), _talk("b", 0.0, 2))], size=2)
    given = replay(["g", "g", "g"], trainer=None)
    assert given["stepwell_reward"] == [1.0, 0.0, 1.0]
    assert given["prompt_ids"][0] == given["prompt_ids"][2] == _talk("a", 1.0, 1).steps[0].prompt_ids.tolist()
    assert given["env_mask"][0] == [1, 1, 0, 0, 1, 1]
    assert len(given["completion_ids"][0]) == len(given["logprobs"][0]) == 6
    assert Replay.rewards(["g"], ["x"], stepwell_reward=[0.25]) == [0.25]


def test_groups_with_too_few_usable_trajectories_are_left_out_by_name() -> None:
    short = _group("short", _talk("a", 1.0), _talk("b", None), _talk("c", 1.0, drifts=True))
    replay = Replay([short, _group("g", _talk("a", 1.0), _talk("b", 0.0))], size=2)
    assert replay.left_out == ("short",)
    assert replay.dataset["prompt"] == ["g"]
    with pytest.raises(NotFound, match="short"):
        replay(["short"], trainer=None)


def test_sft_trains_on_the_exact_tokens(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    config = SFTConfig(output_dir=str(tmp_path), completion_only_loss=True, per_device_train_batch_size=2, **_QUIET)
    data = rollouts([_group("g", _talk("a", 1.0), _talk("b", 0.0, 1))])
    trainer = SFTTrainer(_model(), config, train_dataset=data, processing_class=tokenizer)
    (batch,) = trainer.get_train_dataloader()
    assert (batch["labels"] != -100).sum(dim=1).tolist() == [4, 4]
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 0


def test_sft_and_dpo_train_on_conversations(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    group = group_of(searching("a", 1.0, "g", "in Abhaneri"), searching("b", 0.0, "g", "nowhere"))
    sft = conversations([group])
    assert sft.num_rows == 2
    config = SFTConfig(output_dir=str(tmp_path), max_length=None, per_device_train_batch_size=2, **_QUIET)
    trainer = SFTTrainer(_model(), config, train_dataset=sft, processing_class=tokenizer)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 0
    pairs = preferences([group])
    assert pairs.column_names[:3] == ["prompt", "chosen", "rejected"]
    dpo = DPOConfig(output_dir=str(tmp_path), max_length=None, per_device_train_batch_size=1, **_QUIET)
    judge = DPOTrainer(_model(), _model(), dpo, train_dataset=pairs, processing_class=tokenizer)
    judge.train()
    assert judge.state.log_history[0]["loss"] == pytest.approx(np.log(2), abs=1e-4)
