"""The policy: a Hugging Face causal language model with a version number and, for critics, a value head.

Shape letters: N packed tokens, M selected positions, E hidden size, W vocabulary size.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from stepwell.config import Config
from stepwell.errors import ConfigError, NotFound
from stepwell.policy.attention import ATTENTION, AttentionPlan, at_least_single
from stepwell.policy.critic import Critic, CriticKind
from stepwell.policy.lora import LoRAConfig, add_adapters, without_adapters
from stepwell.policy.ranks import ALONE, Ranks
from stepwell.policy.shards import Evaluate, at_once, parted, refuse_other
from stepwell.policy.tree_attention import TreeAttention, laid_out
from stepwell.policy.unsupported import refuse_unsupported
from stepwell.prefix_tree.tree import merged, separate


class PolicyConfig(Config):
    """Which model is trained, and which part of it."""

    model: str = "smollm2-135m"
    """A built-in model (`smollm2-135m`, `lookup`) or the directory of a Hugging Face checkpoint."""
    trainable_layers: int | None = Field(default=None, ge=1)
    """How many of the last transformer layers are trained (with the final norm); None trains everything."""
    lora: LoRAConfig | None = None
    """Train low-rank adapters instead of the model's own weights."""
    critic: CriticKind = "head"
    """For algorithms with a critic: a `head` on the policy's last hidden state, which it leaves alone; a head through
    which it is `shared`, so that learning values moves the policy too; or a `model` of its own."""
    value_head_size: int = Field(default=64, ge=1)
    """Hidden units of the critic's head."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the matrix products in every forward pass, sampling and training alike; weights stay float32."""
    gradient_checkpointing: bool = False
    """Compute each layer's activations twice instead of keeping them: less memory, a third more time."""
    threads: int = Field(default=0, ge=0)
    """Torch threads for sampling and training; 0 leaves torch's default."""

    @model_validator(mode="after")
    def _one_trained_part(self) -> "PolicyConfig":
        if self.lora is not None and self.trainable_layers is not None:
            raise ValueError("lora trains adapters instead of layers: leave trainable_layers out, or lora")
        return self


class Policy:
    """The trainable model. One instance is shared by the local engine and the trainer, so weights need no copying.

    Reading (a forward pass of the engine) and writing (an update) exclude each other through `reading` and `writing`.
    """

    def __init__(self, model: nn.Module, config: PolicyConfig | None = None, *, name: str) -> None:
        """Take `model`, loaded with our attention.

        Raises:
            ConfigError: its architecture cannot be evaluated exactly, or has not the layers that `config` names.
        """
        config = config or PolicyConfig()
        facts: Any = model.config
        refuse_unsupported(facts)
        self.name = name
        self.version = 0
        self.ranks: Ranks = ALONE
        """The processes of which each has a part of the weights (`stepwell.policy.sharding`)."""
        self.evaluated: Evaluate = at_once
        """Gives what a function gives that calls the methods below, which work nowhere else once the weights are
        sharded. All ranks call it equally often. For gradients, the function's result is what they are taken of."""
        self.model = model.eval()  # no dropout: a recomputed log-probability must equal the sampled one
        self.context_length = int(facts.max_position_embeddings)
        self.vocabulary_size = int(facts.vocab_size)
        self._backbone: Any = model.base_model
        self._head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]  # a transformers model
        self._lock = threading.Lock()
        self._softcap: float | None = getattr(facts, "final_logit_softcapping", None)
        self._autocast = False  # while its exactness is looked at
        _refuse_inexact(self)
        self._autocast = config.precision == "bfloat16"
        self.critic = Critic(config.critic, self._backbone, int(facts.hidden_size), config.value_head_size)
        freeze_all_but_last(model, self._backbone, config.trainable_layers)
        self._adapted = config.lora is not None
        if config.lora is not None:
            add_adapters(model, config.lora)
        if config.gradient_checkpointing:
            _checkpoint_layers(model, self._backbone)
            if self.own_critic:
                _checkpoint_layers(self.critic.trunk, self.critic.trunk)

    @classmethod
    def load(cls, directory: Path, config: PolicyConfig | None = None, *, name: str) -> "Policy":
        """Load a Hugging Face checkpoint in float32.

        Raises:
            NotFound: the directory holds no checkpoint.
            ConfigError: as for the class itself.
        """
        if not (directory / "config.json").exists():
            raise NotFound(f"{directory} is not a Hugging Face checkpoint: it has no config.json")
        try:
            model = AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
            )
        except KeyError as error:
            if error.args != (ATTENTION,):
                raise
            raise ConfigError(f"the model in {directory} has attention of its own, which cannot be planned") from error
        return cls(model, config, name=name)

    def hidden(self, ids_n: Tensor, positions_n: Tensor, plan: AttentionPlan) -> Tensor:
        """Last hidden states [N, E] of packed tokens: ids int64 [N], positions int64 [N] (from 0 in each row)."""
        with self._precision(ids_n):
            out = self._backbone(input_ids=ids_n[None], position_ids=positions_n[None], use_cache=False, plan=plan)
        return out.last_hidden_state[0]

    def logits(self, hidden_me: Tensor) -> Tensor:
        """Next-token logits [M, W], float32 or more."""
        with self._precision(hidden_me):
            logits: Tensor = at_least_single(self._head(hidden_me))
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)

    def critic_states(
        self, hidden_ne: Tensor | None, ids_n: Tensor, positions_n: Tensor, plan: AttentionPlan
    ) -> Tensor:
        """What the critic reads, [N, E]: from the policy's `hidden_ne`, which `own_critic` does without."""
        with self._precision(ids_n):
            return self.critic.states(hidden_ne, ids_n, positions_n, plan)

    def values(self, states_me: Tensor) -> Tensor:
        """The critic's values [M] of what `critic_states` gave."""
        values: Tensor = self.critic(states_me)
        return values

    def sharded_over(self, ranks: Ranks, evaluate: Evaluate) -> None:
        """Let each of `ranks` have a part of the weights from now on, which `evaluate` puts together."""
        self.ranks, self.evaluated = ranks, evaluate

    @property
    def half(self) -> bool:
        """Whether layers compute in bfloat16."""
        return self._autocast

    @property
    def stacks(self) -> list[Any]:
        """The stacks of transformer layers: the model's own, and the critic's if it has one."""
        return [self._backbone, *([self.critic.trunk] if self.own_critic else [])]

    def plain_model(self) -> Any:
        """The transformers model as any program can load it: adapters, if it has some, merged into a copy.

        Raises:
            ConfigError: no rank has all of it.
        """
        if self.ranks.count > 1:
            raise ConfigError(
                "a sharded model cannot be written whole: load its checkpoint in one process and export it"
            )
        return without_adapters(self.model) if self._adapted else self.model

    @property
    def own_critic(self) -> bool:
        """Whether the critic has a model of its own, and needs no states of the policy."""
        return self.critic.kind == "model"

    def begin_critic(self) -> None:
        """Let a critic with a model of its own begin as the policy is now, e.g. after a warm-up."""
        if self.own_critic:
            start: Any = self.plain_model() if self._adapted else self.model
            self.critic.trunk.load_state_dict(start.base_model.state_dict())

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Parameters of the language model that an update changes (the critic's not among them)."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters of the critic alone."""
        return list(self.critic.parameters())

    def _precision(self, at: Tensor) -> torch.autocast:
        return torch.autocast(at.device.type, dtype=torch.bfloat16, enabled=self._autocast)

    def trainable_state(self) -> dict[str, Tensor]:
        """The tensors that training changes, by name, critic included: what a checkpoint has to hold."""
        return {name: p.detach() for name, p in self.trained_parameters().items()}

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that those tensors are of, in the order of `trainable_parameters` and `critic_parameters`."""
        own = {f"model.{name}": p for name, p in self.model.named_parameters() if p.requires_grad}
        return own | {f"critic.{name}": p for name, p in self.critic.named_parameters()}

    def model_state(self) -> dict[str, Tensor]:
        """Those of them that are the language model's own: what its log-probabilities depend on."""
        return {f"model.{name}": p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def load_trainable_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `trainable_state` gave.

        Raises:
            ConfigError: names or shapes differ, so the checkpoint belongs to another model or another trained part.
        """
        _put(state, self.trainable_state())

    def load_model_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `model_state` gave, and leave the critic. Raises as `load_trainable_state`."""
        _put(state, self.model_state())

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


def _put(state: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    refuse_other({k: v.shape for k, v in state.items()}, {k: v.shape for k, v in own.items()})
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(parted(state[name], tensor))


def _refuse_inexact(policy: Policy) -> None:
    """Find architectures that bypass the plan, or do more than we do: by a few tokens, packed and by transformers."""
    try:
        with torch.no_grad():
            planned = _end_is_private(policy) and _is_transformers_own(policy)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{type(policy.model).__name__} is not supported yet: {error}") from error
    if not planned:
        raise ConfigError(
            f"{type(policy.model).__name__} is not supported yet, or not with this config: its attention cannot be "
            "planned. Only causal attention whose windows are the layers' own is, and plain logits of the last states"
        )


def _end_is_private(policy: Policy) -> bool:
    """Whether, of two packed rows, the end of the first is seen by nobody else."""
    rows = torch.tensor([[0, 1, 2], [0, 1, 2]])
    plan = TreeAttention(separate(list(rows.int().numpy())))
    positions = torch.arange(3).repeat(2)
    states = policy.hidden(rows.flatten(), positions, plan)
    rows[0, 2] = 3
    change = policy.hidden(rows.flatten(), positions, plan) - states
    return bool(change[[0, 1, 3, 4, 5]].abs().max() <= 1e-4 * states.abs().max())


def _is_transformers_own(policy: Policy) -> bool:
    """Whether merged rows have the logits that transformers' own attention gives each, windows shortened to show."""
    rows = torch.tensor([[0, 1, 2], [0, 1, 3]])
    tree = merged(list(rows.int().numpy()))
    places = torch.from_numpy(np.stack([tree.places(0), tree.places(1)]))
    model: Any = policy.model
    with _short_windows(model):
        got = policy.logits(policy.hidden(*laid_out(tree)))[places]
        model.set_attn_implementation("eager")
        try:
            expected = model(input_ids=rows, use_cache=False).logits
        finally:
            model.set_attn_implementation(ATTENTION)
    return bool((got - expected).abs().max() <= 1e-3 * expected.abs().max())


@contextmanager
def _short_windows(model: nn.Module) -> Iterator[None]:
    """Windows of two tokens, which three are enough to tell from none; as they were afterwards.

    Not such as hide nothing within the model's context: whether layers ask for those is all the same.
    """
    facts: Any = model.config
    owners: list[Any] = [facts, *model.modules()]
    windows = [(owner, getattr(owner, "sliding_window", None) or 0) for owner in owners]
    windows = [(owner, window) for owner, window in windows if 0 < window < facts.max_position_embeddings]
    try:
        for owner, _ in windows:
            owner.sliding_window = 2
        yield
    finally:
        for owner, window in windows:
            owner.sliding_window = window


def freeze_all_but_last(model: nn.Module, backbone: Any, layers: int | None) -> None:
    """Let only the last `layers` and the final norm be trained; None: everything. Raises ConfigError."""
    if layers is None:
        return
    total = len(backbone.layers)
    if not 0 < layers <= total:
        raise ConfigError(f"trainable_layers must be 1..{total} for this model, got {layers}")
    model.requires_grad_(False)
    backbone.norm.requires_grad_(True)
    for layer in backbone.layers[total - layers :]:
        layer.requires_grad_(True)


def _checkpoint_layers(model: nn.Module, backbone: Any) -> None:
    """transformers does it only in layers that are in training mode; whatever is inside them stays out of it."""
    enable: Any = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for layer in backbone.layers:
        layer.training = True
