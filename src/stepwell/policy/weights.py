"""Weights by version: checkpoints of what training changes, and whole models that any Hugging Face program can load.

The local engine samples from the trained policy itself, so publishing to it is the update. Files are for restarts, for
serving later, and for other programs.
"""

import copy
import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from stepwell.errors import NotFound
from stepwell.policy.model import Policy
from stepwell.policy.placing import placed
from stepwell.policy.shards import SHARDS, read_shards, refuse_other, shards_in, whole

WEIGHTS_FILE: Final = "trainable.safetensors"
WEIGHTS: Final = "weights."
"""What the names of these tensors begin with among shards."""
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def save_weights(folder: Path, policy: Policy) -> None:
    """Write the tensors that training changes, whole, value head included. All ranks call it, the first one writes."""
    first, tensors = policy.ranks.rank == 0, {}
    for name, tensor in policy.trainable_state().items():
        full = whole(tensor)
        if first:
            tensors[name] = full.cpu().contiguous()
    if first:
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"policy_version": str(policy.version)})


def load_weights(folder: Path, policy: Policy, version: int) -> None:
    """Put back, as `version`, what `save_weights` wrote, or what several ranks wrote together.

    Raises:
        ConfigError: it belongs to another model, or other layers were trained in it.
    """
    shards = shards_in(folder, WEIGHTS) if (folder / SHARDS).is_dir() else None
    state = load_file(folder / WEIGHTS_FILE) if shards is None else {}
    with policy.writing():
        if shards is None:
            policy.load_trainable_state(state)
        else:
            own = policy.trainable_state()
            refuse_other(shards, {name: tensor.shape for name, tensor in own.items()})
            read_shards(folder, {f"{WEIGHTS}{name}": tensor for name, tensor in own.items()})
        policy.version = version


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints (`<folder>/<version>`), oldest first."""
    return sorted(p for p in folder.glob("[0-9]*") if p.is_dir()) if folder.exists() else []


def load_newest(run: Path, policy: Policy) -> int:
    """Load the newest version in the folder of a run for serving; gives its number. Raises NotFound.

    It is that of a checkpoint, or one that was published to another process since.
    """
    found = [*checkpoints(run / "weights"), *checkpoints(run / "checkpoints")]
    if not found:
        raise NotFound(f"{run} holds no checkpoint yet")
    newest = max(found, key=lambda folder: int(folder.name))
    load_weights(newest, policy, int(newest.name))
    return int(newest.name)


def export_model(policy: Policy, source: Path, target: Path, *, untied: bool = False) -> None:
    """Write the whole model with the tokenizer of `source` as a Hugging Face checkpoint, whole or not at all.

    `untied`: store the output layer also where it is tied to the embeddings, as a model in which it is not. vLLM, when
    it reloads weights, would otherwise keep its old one.
    """
    model = policy.plain_model()
    with placed(target) as folder:
        (_untied(model) if untied else model).save_pretrained(folder)
        for name in _TOKENIZER_FILES:
            if (source / name).exists():
                shutil.copy(source / name, folder / name)
        (folder / "stepwell.json").write_text(json.dumps({"policy_version": policy.version}), encoding="utf-8")


def _untied(model: Any) -> Any:
    """A model with the same parameters, its output layer's a tensor of its own."""
    if not model.config.tie_word_embeddings:
        return model
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    with torch.device("meta"):
        untied = type(model)(config)
    state = model.state_dict()
    untied.load_state_dict(state, assign=True)
    head = untied.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    return untied
