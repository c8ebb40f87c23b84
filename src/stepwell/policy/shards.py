"""Tensors of which each rank has a part (`DTensor`), as others see them; and files that all ranks write together.

Whole tensors are their own only part, so nothing here needs to know how many ranks there are.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, distribute_tensor

from stepwell.errors import ConfigError

T = TypeVar("T")
SHARDS: Final = "shards"
"""Folder of a checkpoint that holds what each rank wrote, in the format of `torch.distributed.checkpoint`."""


class Evaluate(Protocol):
    """Calls a function, with parameters in their places, whole, while it runs."""

    def __call__(self, function: Callable[[], T]) -> T:
        """What `function` gives."""
        ...


def at_once(function: Callable[[], T]) -> T:
    """Where they always are: see `Evaluate`."""
    return function()


def refuse_other(shapes: Mapping[str, torch.Size], own: Mapping[str, torch.Size]) -> None:
    """Raise ConfigError if the tensors of a checkpoint are not those of a policy, by name and whole shape."""
    if dict(shapes) != dict(own):
        raise ConfigError("the checkpoint belongs to another model, or other layers were trained in it")


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every rank."""
    if not isinstance(tensor, DTensor):
        return tensor
    full: Tensor = tensor.full_tensor()
    return full


def parted(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor`, whole on every rank or parted already, such that each rank has of it what it has of `like`."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    part: Tensor = distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return part


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `folder/shards`: each rank its parts. Whole tensors are the same everywhere, and written once."""
    save(dict(tensors), checkpoint_id=folder / SHARDS)


def shards_in(folder: Path, prefix: str) -> dict[str, torch.Size]:
    """The tensors in `folder/shards` whose names begin with `prefix`: what follows it in them, and whole shapes."""
    found = FileSystemReader(folder / SHARDS).read_metadata().state_dict_metadata
    return {
        name.removeprefix(prefix): facts.size
        for name, facts in found.items()
        if name.startswith(prefix) and isinstance(facts, TensorStorageMetadata)
    }


def read_shards(folder: Path, into: Mapping[str, Tensor]) -> None:
    """Overwrite tensors with those of their names, however many ranks wrote them and read them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is meant to be in one process
        load(dict(into), checkpoint_id=folder / SHARDS)
