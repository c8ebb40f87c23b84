"""The policy: a Hugging Face causal language model with a version number and, for critics, a value head.

Shape letters: N packed tokens, M selected positions, E hidden size, W vocabulary size.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from stepwell.config import Config
from stepwell.errors import ConfigError, NotFound
from stepwell.policy.attention import ATTENTION, AttentionPlan, PackedRows

_SCALED_LOGITS: Final = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class PolicyConfig(Config):
    """Which model is trained, and which part of it."""

    model: str = "smollm2-135m"
    """A built-in model (`smollm2-135m`, `lookup`) or the directory of a Hugging Face checkpoint."""
    trainable_layers: int | None = Field(default=None, ge=1)
    """How many of the last transformer layers are trained (with the final norm); None trains everything."""
    value_head_size: int = Field(default=64, ge=1)
    """Hidden units of the critic's head on the (detached) last hidden state; used only by algorithms with a critic."""
    threads: int = Field(default=0, ge=0)
    """Torch threads for sampling and training; 0 leaves torch's default."""


class Policy:
    """The trainable model. One instance is shared by the local engine and the trainer, so weights need no copying.

    Reading (a forward pass of the engine) and writing (an update) exclude each other through `reading` and `writing`.
    """

    def __init__(self, model: nn.Module, *, name: str, trainable_layers: int | None = None, value_head_size: int = 64):
        config: Any = model.config
        _refuse_unsupported(config)
        self.name = name
        self.version = 0
        self.model = model.eval()  # no dropout: a recomputed log-probability must equal the sampled one
        self.context_length = int(config.max_position_embeddings)
        self.vocabulary_size = int(config.vocab_size)
        self.value_head = _value_head(int(config.hidden_size), value_head_size)
        self._backbone: Any = model.base_model
        self._head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]  # a transformers model
        self._lock = threading.Lock()
        _refuse_inexact(self)
        _freeze_all_but_last(model, self._backbone, trainable_layers)

    @classmethod
    def load(
        cls, directory: Path, *, name: str, trainable_layers: int | None = None, value_head_size: int = 64
    ) -> "Policy":
        """Load a Hugging Face checkpoint in float32.

        Raises:
            NotFound: the directory holds no checkpoint.
            ConfigError: its architecture is one that Stepwell cannot evaluate exactly.
        """
        if not (directory / "config.json").exists():
            raise NotFound(f"{directory} is not a Hugging Face checkpoint: it has no config.json")
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
        )
        return cls(model, name=name, trainable_layers=trainable_layers, value_head_size=value_head_size)

    def hidden(self, ids_n: Tensor, positions_n: Tensor, plan: AttentionPlan) -> Tensor:
        """Last hidden states [N, E] of packed tokens: ids int64 [N], positions int64 [N] (from 0 in each row)."""
        out = self._backbone(input_ids=ids_n[None], position_ids=positions_n[None], use_cache=False, plan=plan)
        return out.last_hidden_state[0]

    def logits(self, hidden_me: Tensor) -> Tensor:
        """Next-token logits [M, W], float32."""
        return self._head(hidden_me).float()

    def values(self, hidden_me: Tensor) -> Tensor:
        """The critic's values [M]. The trunk is detached: learning values never moves the policy."""
        return self.value_head(hidden_me.detach()).squeeze(-1)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Parameters of the language model that an update changes (the value head's not among them)."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def trainable_state(self) -> dict[str, Tensor]:
        """The tensors that training changes, by name, value head included: what a checkpoint has to hold."""
        model = {f"model.{name}": p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
        head = {f"value_head.{name}": p.detach() for name, p in self.value_head.named_parameters()}
        return model | head

    def load_trainable_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `trainable_state` gave.

        Raises:
            ConfigError: names or shapes differ, so the checkpoint belongs to another model or another trained part.
        """
        own = self.trainable_state()
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in state.items()}:
            raise ConfigError("the checkpoint belongs to another model, or other layers were trained in it")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    @contextmanager
    def reading(self) -> Iterator[int]:
        """Hold the weights still for one forward pass; gives their version."""
        with self._lock:
            yield self.version

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Change the weights with no forward pass of the engine in between. Set `version` inside."""
        with self._lock:
            yield


def _refuse_unsupported(config: Any) -> None:
    if not getattr(config, "max_position_embeddings", None):
        raise ConfigError("the model's config has no max_position_embeddings, so its context is not known")
    scaled = [name for name in _SCALED_LOGITS if getattr(config, name, None)]
    if scaled:
        raise ConfigError(f"models that rescale their logits ({', '.join(scaled)}) are not supported yet")
    if getattr(config, "layer_types", None) and set(config.layer_types) != {"full_attention"}:
        raise ConfigError(f"only full causal attention is supported yet, this model has {set(config.layer_types)}")


def _refuse_inexact(policy: Policy) -> None:
    """Find architectures that bypass the plan: of two packed rows, the end of the first may be seen by nobody else."""
    positions = torch.arange(3).repeat(2)
    plan = PackedRows([3, 3])
    try:
        with torch.no_grad():
            states = policy.hidden(torch.tensor([0, 1, 2, 0, 1, 2]), positions, plan)
            change = policy.hidden(torch.tensor([0, 1, 3, 0, 1, 2]), positions, plan) - states
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ConfigError(f"{type(policy.model).__name__} is not supported yet: {error}") from error
    if change[[0, 1, 3, 4, 5]].abs().max() > 1e-4 * states.abs().max():
        raise ConfigError(f"{type(policy.model).__name__} is not supported yet: its attention cannot be planned")


def _freeze_all_but_last(model: nn.Module, backbone: Any, layers: int | None) -> None:
    if layers is None:
        return
    total = len(backbone.layers)
    if not 0 < layers <= total:
        raise ConfigError(f"trainable_layers must be 1..{total} for this model, got {layers}")
    model.requires_grad_(False)
    backbone.norm.requires_grad_(True)
    for layer in backbone.layers[total - layers :]:
        layer.requires_grad_(True)


def _value_head(hidden: int, size: int) -> nn.Module:
    """Values start at 0, so that the first advantages are plain returns."""
    last = nn.Linear(size, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.LayerNorm(hidden, elementwise_affine=False), nn.Linear(hidden, size), nn.GELU(), last)
