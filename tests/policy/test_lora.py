from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from stepwell.algorithms.objective import Objective
from stepwell.errors import ConfigError
from stepwell.policy.weights import export_model
from tests.policy.tiny import one_row, tiny_policy
from tests.trainer.builders import SHAPES, make_learner, sampled


def test_an_exported_model_has_what_its_adapters_learnt_in_its_weights(tmp_path: Path) -> None:
    policy = tiny_policy("qwen3", settings={"lora": {"rank": 4, "alpha": 8}})
    learner = make_learner(policy, lr=1e-2)
    for _ in range(3):
        learner.update([sampled(policy, *shape, seed) for seed, shape in enumerate(SHAPES)], Objective())
    export_model(policy, tmp_path / "nowhere", tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        hidden = policy.hidden(*one_row(ids[0]))
        torch.testing.assert_close(loaded(ids).logits[0], policy.logits(hidden), atol=1e-4, rtol=1e-4)
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    assert any("lora" in name for name, _ in policy.model.named_parameters())  # which trains on


def test_only_the_layers_that_are_named_get_adapters() -> None:
    policy = tiny_policy(settings={"lora": {"rank": 2, "targets": ("q_proj",)}})
    adapted = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in policy.trainable_state() if "lora_" in name}
    assert adapted == {"q_proj"}


def test_layers_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy\.lora\.targets"):
        tiny_policy(settings={"lora": {"targets": ("no_such_layer",)}})
