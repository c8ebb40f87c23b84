"""Checkpoints: what a killed run needs to go on. A kill while one is written leaves the one before it whole."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from stepwell.errors import ConfigError
from stepwell.policy.model import Policy
from stepwell.policy.snapshot import Snapshot
from stepwell.policy.weights import checkpoints, load_weights, save_weights

_KEEP: Final = 2
_SNAPSHOT: Final = ".snapshot.safetensors"
NO_SNAPSHOTS: Final[Mapping[str, Snapshot]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands."""

    policy_version: int
    """The version that the saved weights are."""
    lease_ids: tuple[str, ...] = ()
    """The leases that made it: trained on already, so to be acknowledged even if the run died before it could."""


def save_checkpoint(
    folder: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    snapshots: Mapping[str, Snapshot] = NO_SNAPSHOTS,
) -> Path:
    """Write `folder/<version>` with weights, optimiser and progress, then drop all but the newest two.

    Files: `trainable.safetensors` (the tensors that training changes), `optimizer.pt`, `progress.json`, and
    `<name>.snapshot.safetensors` for each of `snapshots`.
    """
    final = folder / f"{progress.policy_version:06d}"
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_weights(partial, policy)
    torch.save(optimizer.state_dict(), partial / "optimizer.pt")
    for name, snapshot in snapshots.items():
        tensors = {key: tensor.contiguous() for key, tensor in snapshot.state.items()}
        save_file(tensors, partial / f"{name}{_SNAPSHOT}", metadata={"policy_version": str(snapshot.version)})
    (partial / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
    for file in partial.iterdir():
        _sync(file)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _sync(folder)
    for old in checkpoints(folder)[:-_KEEP]:
        shutil.rmtree(old)
    return final


def load_checkpoint(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Put the newest checkpoint in `folder` into policy and optimiser; None if there is none.

    The optimiser's settings, such as its weight decay, stay those that it was made with.

    Raises:
        ConfigError: it belongs to another model, or other layers were trained in it.
    """
    found = checkpoints(folder)
    if not found:
        return None
    newest = found[-1]
    raw = json.loads((newest / "progress.json").read_text(encoding="utf-8"))
    progress = Progress(policy_version=raw["policy_version"], lease_ids=tuple(raw["lease_ids"]))
    try:
        _load_moments(optimizer, newest / "optimizer.pt")
    except ValueError as error:
        raise ConfigError(f"{newest} belongs to another model or optimiser: {error}") from error
    load_weights(newest, policy, progress.policy_version)
    return progress


def _load_moments(optimizer: torch.optim.Optimizer, file: Path) -> None:
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)


def load_snapshots(folder: Path) -> dict[str, Snapshot]:
    """The snapshots of the newest checkpoint in `folder`, by name."""
    found: dict[str, Snapshot] = {}
    for file in checkpoints(folder)[-1].glob(f"*{_SNAPSHOT}") if checkpoints(folder) else ():
        with safe_open(file, "pt") as tensors:
            version = int(tensors.metadata()["policy_version"])
        found[file.name.removesuffix(_SNAPSHOT)] = Snapshot(version, load_file(file))
    return found


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
