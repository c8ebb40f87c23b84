"""Weights on disk: what training changed comes back, and other programs can load the whole model."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepwell.errors import ConfigError, NotFound
from stepwell.policy.builtin import BUILTIN_MODELS
from stepwell.policy.model import Policy
from stepwell.policy.weights import checkpoints, export_model, load_newest, load_weights, save_weights
from tests.policy.tiny import tiny_policy


def equal(left: Policy, right: Policy) -> bool:
    own, other = left.trainable_state(), right.trainable_state()
    return own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)


def test_saved_weights_come_back_exactly_with_their_version(tmp_path: Path) -> None:
    source, target = tiny_policy(seed=1), tiny_policy(seed=2)
    save_weights(tmp_path, source)
    load_weights(tmp_path, target, 5)
    assert equal(source, target)
    assert target.version == 5


def test_weights_of_another_trained_part_are_refused_and_the_version_stays(tmp_path: Path) -> None:
    save_weights(tmp_path, tiny_policy(seed=1))
    target = tiny_policy(seed=2, trainable_layers=1)
    with pytest.raises(ConfigError, match="other layers"):
        load_weights(tmp_path, target, 5)
    assert target.version == 0


def test_the_newest_version_is_the_one_that_is_served(tmp_path: Path) -> None:
    policies = {version: tiny_policy(seed=version) for version in (9, 10, 2)}
    for version, policy in policies.items():
        folder = tmp_path / ("weights" if version == 10 else "checkpoints") / f"{version:06d}"
        folder.mkdir(parents=True)
        save_weights(folder, policy)
    served = tiny_policy(seed=99)
    assert load_newest(tmp_path, served) == 10
    assert served.version == 10
    assert equal(served, policies[10])


def test_a_checkpoint_that_was_being_written_is_none(tmp_path: Path) -> None:
    (tmp_path / ".000003.partial").mkdir()
    (tmp_path / "000004").write_text("a file, not a folder")
    assert checkpoints(tmp_path) == []
    assert checkpoints(tmp_path / "nowhere") == []
    with pytest.raises(NotFound, match="no checkpoint yet"):
        load_newest(tmp_path, tiny_policy())


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_an_untied_export_has_the_output_layer_of_its_own_and_the_same_logits(
    tmp_path: Path, lora: dict | None
) -> None:
    policy = tiny_policy("qwen2", settings={"lora": lora} if lora else None)
    export_model(policy, tmp_path / "nowhere", tmp_path / "tied")
    export_model(policy, tmp_path / "nowhere", tmp_path / "untied", untied=True)
    tensors = load_file(tmp_path / "untied" / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    assert tensors.keys() - load_file(tmp_path / "tied" / "model.safetensors").keys() == {"lm_head.weight"}
    tied, untied = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("tied", "untied"))
    assert not untied.config.tie_word_embeddings
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        assert torch.equal(untied(ids).logits, tied(ids).logits)
    assert policy.model.config.tie_word_embeddings  # the policy itself stays as it was
    assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight


def test_an_untied_export_of_a_model_that_ties_nothing_is_the_same(tmp_path: Path) -> None:
    policy = tiny_policy("qwen3")
    for name, untied in (("plain", False), ("untied", True)):
        export_model(policy, tmp_path / "nowhere", tmp_path / name, untied=untied)
    plain, other = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "untied"))
    assert plain.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in plain.items())


def test_an_exported_model_loads_in_transformers_with_its_tokenizer_and_the_same_logits(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    BUILTIN_MODELS["lookup"](source, 0)
    policy = Policy.load(source, name="lookup")
    with torch.no_grad():
        policy.trainable_parameters()[0].add_(0.5)
    target.mkdir()
    (target / "old file").write_text("of an export before")
    export_model(policy, source, target)
    loaded = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    state = policy.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())
    assert AutoTokenizer.from_pretrained(target).encode("find a") == AutoTokenizer.from_pretrained(source).encode(
        "find a"
    )
    assert not (target / "old file").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
