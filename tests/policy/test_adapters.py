"""Adapters by themselves are what the peft library reads, and make of the model what the policy is."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from stepwell.errors import ConfigError
from stepwell.policy.adapters import export_adapter
from stepwell.policy.weights import export_model
from tests.policy.tiny import one_row, tiny_policy


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # which peft still uses
@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "up_proj")])
def test_peft_puts_them_onto_the_model_and_the_logits_are_the_policys(tmp_path: Path, targets: str | tuple) -> None:
    policy = tiny_policy("qwen3", settings={"lora": {"rank": 4, "alpha": 8, "targets": targets}})
    export_model(policy, tmp_path, tmp_path / "model")  # at first they add nothing
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    export_adapter(policy, tmp_path / "adapter")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        expected = policy.logits(policy.hidden(*one_row(ids[0])))
        assert not torch.allclose(model(ids).logits[0], expected, atol=1e-2)
        adapted = PeftModel.from_pretrained(model, tmp_path / "adapter")
        torch.testing.assert_close(adapted(ids).logits[0], expected, atol=1e-4, rtol=1e-4)


def test_a_policy_without_adapters_has_none_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.lora"):
        export_adapter(tiny_policy(), tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
