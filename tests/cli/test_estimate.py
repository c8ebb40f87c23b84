"""The estimate of a run's memory against the memory itself, on a model that is small enough to look at."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from stepwell.cli.assembly import load_policy
from stepwell.cli.config import RecipeConfig
from stepwell.cli.estimate import layer_numbers, memory, model_size
from stepwell.cli.playing import build_algorithm
from stepwell.cli.recipes import find_recipe
from stepwell.config import load_config
from stepwell.policy.builtin import resolve_model
from stepwell.policy.tree_attention import TreeAttention
from stepwell.prefix_tree.tree import separate
from stepwell.trainer.update import Learner

TOKENS = 192


def lookup(*settings: str) -> RecipeConfig:
    return load_config(RecipeConfig, find_recipe("lookup"), settings)


def sizes(recipe: RecipeConfig) -> Any:
    return model_size(resolve_model("lookup"), recipe.policy)


@pytest.mark.parametrize("setting", ["policy.critic=head", "policy.critic=model", "policy.trainable_layers=1"])
def test_parameters_are_counted_as_the_loaded_model_has_them(setting: str) -> None:
    recipe = lookup(setting)
    policy, _ = load_policy(recipe)
    size = sizes(recipe)
    assert size.parameters == sum(p.numel() for p in policy.model.parameters())
    assert size.trained == sum(p.numel() for p in policy.trainable_parameters())
    assert size.critic == sum(p.numel() for p in policy.critic_parameters())
    assert size.context == policy.context_length


def test_adapters_are_counted_beside_what_they_adapt() -> None:
    pytest.importorskip("peft")
    recipe = lookup("policy.lora={rank: 2, alpha: 4}")
    policy, _ = load_policy(recipe)
    size = sizes(recipe)
    assert size.trained == sum(p.numel() for p in policy.trainable_parameters())
    assert size.parameters == sum(p.numel() for p in policy.model.parameters()) - size.trained
    counted = memory(recipe, size, build_algorithm(recipe))
    assert counted.weights == 4 * (size.parameters + size.trained + size.critic)


def test_moments_are_as_the_optimiser_has_them() -> None:
    recipe = lookup()
    policy, _ = load_policy(recipe)
    optimizer = Learner(policy, recipe.learner).optimizer
    for parameter in (*policy.trainable_parameters(), *policy.critic_parameters()):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = [t for state in optimizer.state.values() for t in state.values() if t.numel() > 1]
    counted = memory(recipe, sizes(recipe), build_algorithm(recipe))
    assert counted.moments == pytest.approx(sum(t.nbytes for t in states), rel=0.01)  # biases of one number are moments


def test_activations_of_the_layers_are_estimated_within_a_tenth_of_what_autograd_keeps() -> None:
    policy, _ = load_policy(lookup())
    weights = {p.untyped_storage().data_ptr() for p in policy.trainable_parameters()}
    held: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor)
        return tensor

    rows = [np.arange(TOKENS, dtype=np.int32) % 36]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.hidden(torch.from_numpy(rows[0]).long(), torch.arange(TOKENS), TreeAttention(separate(rows)))
    storages = {s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in held)}
    kept = sum(size for place, size in storages.items() if place not in weights)
    size = sizes(lookup())
    assert 4 * TOKENS * size.layers * layer_numbers(size) == pytest.approx(kept, rel=0.1)


def test_each_setting_that_saves_memory_lowers_the_estimate_of_what_it_saves() -> None:
    def of(*settings: str) -> Any:
        recipe = lookup(*settings)
        return memory(recipe, sizes(recipe), build_algorithm(recipe))

    plain = of()
    assert of("learner.micro_batch_tokens=512").activations * 8 == plain.activations
    assert of("policy.precision=bfloat16").activations < plain.activations
    assert of("policy.gradient_checkpointing=true").activations < plain.activations
    assert of("policy.trainable_layers=1").gradients < plain.gradients
    assert of("max_batch=32").cache_per_token * 2 == plain.cache_per_token
    assert of("learner.ranks=2", "mode=local").moments == plain.moments // 2
    compared = of("algorithm.use=grpo", "algorithm.objective={kl_coefficient: 0.1}")
    assert compared.snapshots == 4 * sizes(lookup()).trained


def test_a_number_of_layers_that_the_model_has_not_is_found_without_loading_it() -> None:
    with pytest.raises(ValueError, match=r"trainable_layers must be 1..3"):
        sizes(lookup("policy.trainable_layers=4"))
