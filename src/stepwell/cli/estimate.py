"""How much memory a run takes, from its recipe and its model's config alone: no weight is loaded.

What is counted exactly are parameters and what goes with each. Activations follow from the shapes of a layer as most
models have it (RMSNorm, rotary attention, gated feed-forward), so they are an estimate; see tests/cli/test_estimate.py.

Shape letters: E hidden size, Q and K sizes of all query and of all key heads, F feed-forward size, W vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stepwell.algorithms.base import Algorithm
from stepwell.cli.config import RecipeConfig
from stepwell.policy.attention import ATTENTION
from stepwell.policy.critic import Critic
from stepwell.policy.lora import add_adapters
from stepwell.policy.model import PolicyConfig, freeze_all_but_last
from stepwell.policy.unsupported import refuse_unsupported

_SINGLE: Final = 4
"""Bytes of a float32, in which weights, gradients and moments are kept."""
_MOMENTS: Final = 2
"""Numbers that AdamW keeps of each trained one."""
_LOGITS: Final = 3
"""Tensors of vocabulary size that live at once: log-probabilities, their gradient, and that of the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """A model in numbers."""

    architecture: str
    parameters: int
    trained: int
    """Those of them that an update changes; of adapters, the adapters'."""
    critic: int
    """Parameters of the critic besides."""
    layers: int
    hidden: int
    queries: int
    keys: int
    feed_forward: int
    vocabulary: int
    context: int
    """Tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one learner, and of the engine's cache."""

    weights: int
    gradients: int
    moments: int
    snapshots: int
    """Copies of the trained weights that the algorithm compares with."""
    activations: int
    """Of one micro-batch, at most: as if every token of it were a response's."""
    cache_per_token: int
    """Keys and values of one token in all slots of the local engine."""

    @property
    def learner(self) -> int:
        """All of it but the cache."""
        return self.weights + self.gradients + self.moments + self.snapshots + self.activations


def model_size(directory: Path, config: PolicyConfig) -> ModelSize:
    """The model in `directory` as `config` has it trained. Raises ConfigError as loading it would."""
    facts: Any = AutoConfig.from_pretrained(directory, local_files_only=True)
    refuse_unsupported(facts)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(facts, attn_implementation=ATTENTION)
        parameters = sum(p.numel() for p in model.parameters())
        critic = Critic(config.critic, model.base_model, int(facts.hidden_size), config.value_head_size)
        freeze_all_but_last(model, model.base_model, config.trainable_layers)
        if config.lora is not None:
            add_adapters(model, config.lora)
    size = getattr(facts, "head_dim", None) or facts.hidden_size // facts.num_attention_heads
    return ModelSize(
        architecture=type(model).__name__,
        parameters=parameters,
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        critic=sum(p.numel() for p in critic.parameters()),
        layers=int(facts.num_hidden_layers),
        hidden=int(facts.hidden_size),
        queries=int(facts.num_attention_heads * size),
        keys=int(getattr(facts, "num_key_value_heads", facts.num_attention_heads) * size),
        feed_forward=int(getattr(facts, "intermediate_size", None) or 4 * facts.hidden_size),
        vocabulary=int(facts.vocab_size),
        context=int(facts.max_position_embeddings),
    )


def memory(recipe: RecipeConfig, size: ModelSize, algorithm: Algorithm) -> Memory:
    """What the recipe takes, of each of its learners; weights and what goes with them are divided among those."""
    changed = size.trained + size.critic
    adapters = size.trained if recipe.policy.lora is not None else 0
    ranks = recipe.learner.ranks
    teacher = algorithm.teacher is not None and bool(algorithm.teacher.refresh_every)
    snapshots = teacher + bool(algorithm.objective.kl_coefficient)
    return Memory(
        weights=_SINGLE * (size.parameters + adapters + size.critic) // ranks,
        gradients=_SINGLE * changed // ranks,
        moments=_SINGLE * _MOMENTS * changed // ranks,
        snapshots=_SINGLE * snapshots * size.trained // ranks,
        activations=recipe.learner.micro_batch_tokens * _per_token(recipe.policy, size),
        cache_per_token=recipe.max_batch * 2 * size.layers * size.keys * _width(recipe.policy),
    )


def _per_token(config: PolicyConfig, size: ModelSize) -> int:
    """Bytes that the backward pass needs of each token. Layers below the first trained one keep nothing."""
    layers = config.trainable_layers or size.layers
    kept = layers * layer_numbers(size) * _width(config)
    if config.gradient_checkpointing:  # each layer's input, and one layer that is being computed again
        kept = layers * size.hidden * _SINGLE + layer_numbers(size) * _width(config)
    if config.critic == "model":
        kept *= 2
    return kept + _SINGLE * (2 * size.hidden + _LOGITS * size.vocabulary)


def layer_numbers(size: ModelSize) -> int:
    """Numbers that one layer keeps of a token: 6E around its norms and linear maps, 3Q + 2K of attention, 4F."""
    return 6 * size.hidden + 3 * size.queries + 2 * size.keys + 4 * size.feed_forward


def _width(config: PolicyConfig) -> int:
    """Bytes of what layers compute."""
    return 2 if config.precision == "bfloat16" else _SINGLE
