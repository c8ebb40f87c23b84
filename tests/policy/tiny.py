"""Models of one to three layers with random weights, and their plain transformers twins."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from stepwell.policy.attention import ATTENTION
from stepwell.policy.model import Policy, PolicyConfig
from stepwell.policy.tree_attention import TreeAttention, laid_out
from stepwell.prefix_tree.tree import separate
from tests.policy.exact import UNROUNDED, exact

VOCABULARY = 40
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
CONFIGS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "gemma2": (Gemma2Config, {"head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 2.0}),
    "gemma3": (Gemma3TextConfig, {"head_dim": 8, "sliding_window": 5, "sliding_window_pattern": 2}),
    "llama": (LlamaConfig, {}),
    "llama-rope": (LlamaConfig, {"rope_parameters": _LLAMA3 | {"original_max_position_embeddings": 32}}),
    "mistral": (MistralConfig, {"sliding_window": 4}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 8}),
    "qwen3-rope": (Qwen3Config, {"head_dim": 8, "rope_parameters": _YARN}),
}
"""One of each kind of attention: all heads alike or grouped, windows, squashed scores, ways of rotating."""


def tiny_config(kind: str = "qwen2", **more) -> PreTrainedConfig:
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": kind == "qwen2",
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": None,
    }
    made, own = CONFIGS[kind]
    return made(**{**settings, **own, **more})


def tiny_model(config: PreTrainedConfig, attention: str = ATTENTION) -> torch.nn.Module:
    return AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation=attention, dtype=torch.float32
    ).eval()


def tiny_policy(
    kind: str = "qwen2", seed: int = 0, trainable_layers: int | None = None, settings: dict | None = None, **more
) -> Policy:
    """Every parameter is random, biases and norms too: what starts at 0 or 1 would hide mistakes."""
    torch.manual_seed(seed)
    model = tiny_model(tiny_config(kind, **more))
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.25 if parameter.ndim > 1 else 0.1
            parameter.copy_(torch.randn_like(parameter) * spread + (parameter.ndim == 1) * parameter.mean().round())
    config = PolicyConfig(trainable_layers=trainable_layers, value_head_size=16, **(settings or {}))
    policy = Policy(model, config, name="tiny")
    randomise_critic(policy)
    return policy


def randomise_critic(policy: Policy) -> None:
    """A value head that says something else than 0."""
    with torch.no_grad():
        for parameter in policy.critic.head.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)


def one_row(ids: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor, TreeAttention]:
    """What a policy evaluates of a single row."""
    return several_rows([ids])


def several_rows(rows: Sequence[Sequence[int] | np.ndarray | Tensor]) -> tuple[Tensor, Tensor, TreeAttention]:
    """What a policy evaluates of rows end to end, with nothing merged."""
    return laid_out(separate([np.asarray(row, np.int32) for row in rows]))


def exact_policy(kind: str = "qwen2", settings: dict | None = None, **more) -> Policy:
    """As `tiny_policy`, in double precision throughout."""
    policy = tiny_policy(kind, settings=settings, **more)
    exact(policy.model)
    exact(policy.critic)
    return policy


def plain_twin(policy: Policy) -> torch.nn.Module:
    """The same weights in a model that transformers evaluates by itself, with its own eager attention.

    Of an exact policy, with an attention that rounds as little as everything else there.
    """
    double = next(policy.model.parameters()).dtype == torch.float64
    twin = tiny_model(policy.model.config, UNROUNDED if double else "eager")
    twin = exact(twin) if double else twin
    twin.load_state_dict(policy.model.state_dict())
    return twin


def plain_logprobs(policy: Policy, ids: Sequence[int], scale: float = 1.0) -> Tensor:
    """Log-probabilities [len(ids), W] of what follows each prefix of `ids`, by the plain twin."""
    with torch.no_grad():
        logits = plain_twin(policy)(torch.tensor([list(ids)])).logits[0]
    return (logits / scale).log_softmax(-1)


def random_ids(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, VOCABULARY, length).astype(np.int32)
