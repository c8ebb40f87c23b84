"""What AdamW keeps of each parameter, under the parameter's name: that is found however parameters are sharded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from stepwell.errors import ConfigError
from stepwell.policy.model import Policy
from stepwell.policy.shards import parted, read_shards, shards_in

_MOMENTS: Final = "moments."


def named(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`moments.<parameter>/<what>`; a parameter that never had a gradient has none."""
    found = ((name, optimizer.state.get(p, {})) for name, p in policy.trained_parameters().items())
    return {f"{_MOMENTS}{name}/{key}": value for name, state in found for key, value in state.items()}


def load_shards(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Put back what `named` gave, from the shards in `folder`.

    Raises:
        ConfigError: it is of other parameters. Nothing was changed.
    """
    parameters, state = policy.trained_parameters(), dict[str, dict[str, Tensor]]()
    for place, shape in shards_in(folder, _MOMENTS).items():
        name, key = place.rsplit("/", 1)
        parameter = parameters.get(name)
        if parameter is None or shape not in (parameter.shape, torch.Size()):
            raise ConfigError(f"{folder} belongs to another model: its optimiser has {name} of shape {tuple(shape)}")
        state.setdefault(name, {})[key] = torch.zeros(()) if shape == () else torch.zeros_like(parameter.detach())
    read_shards(folder, {f"{_MOMENTS}{name}/{key}": t for name, own in state.items() for key, t in own.items()})
    optimizer.state.clear()
    optimizer.state.update({parameters[name]: own for name, own in state.items()})


def load_plain(file: Path, optimizer: torch.optim.Optimizer) -> None:
    """Put back an optimiser's own `state_dict`, such as one process writes; its settings are left as they are.

    Raises:
        ConfigError: it is of other parameters.
    """
    saved = torch.load(file, weights_only=True)
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    try:
        state = {place: _like(parameters[place], own) for place, own in saved["state"].items()}
        optimizer.load_state_dict(saved | {"state": state})
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{file.parent} belongs to another model or optimiser: {error}") from error
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)


def _like(parameter: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
    """Moments are parted as their parameter is; how many there were is one number."""
    return {key: parted(value, parameter) if value.ndim else value for key, value in state.items()}
