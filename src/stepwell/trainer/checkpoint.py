"""Checkpoints: what a killed run needs to go on. A kill while one is written leaves the one before it whole.

One process writes plain files; several write shards together. Either is read by any number of processes.
"""

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

from stepwell.policy.model import Policy
from stepwell.policy.shards import SHARDS, parted, read_shards, shards_in, write_shards
from stepwell.policy.snapshot import Snapshot
from stepwell.policy.weights import WEIGHTS, checkpoints, load_weights, save_weights
from stepwell.trainer import moments

_KEEP: Final = 2
_SNAPSHOT: Final = ".snapshot.safetensors"
_KEPT, _VERSION = "snapshots.", "versions."
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
    `<name>.snapshot.safetensors` for each of `snapshots`. Several ranks, all of which call this, for a folder that all
    of them see, write a folder `shards` in place of all but `progress.json`.
    """
    ranks, final = policy.ranks, folder / f"{progress.policy_version:06d}"
    partial = ranks.decided(lambda: _begun(final))
    if ranks.count > 1:
        write_shards(partial, _sharded(policy, optimizer, snapshots))
    else:
        _write_plain(partial, policy, optimizer, snapshots)
    ranks.decided(lambda: _finished(partial, final, progress))
    return final


def _begun(final: Path) -> Path:
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _finished(partial: Path, final: Path, progress: Progress) -> None:
    (partial / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
    for file in partial.iterdir():
        _sync(file)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _sync(final.parent)
    for old in checkpoints(final.parent)[:-_KEEP]:
        shutil.rmtree(old)


def _write_plain(
    folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, snapshots: Mapping[str, Snapshot]
) -> None:
    save_weights(folder, policy)
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    for name, snapshot in snapshots.items():
        tensors = {key: tensor.contiguous() for key, tensor in snapshot.state.items()}
        save_file(tensors, folder / f"{name}{_SNAPSHOT}", metadata={"policy_version": str(snapshot.version)})


def _sharded(
    policy: Policy, optimizer: torch.optim.Optimizer, snapshots: Mapping[str, Snapshot]
) -> dict[str, torch.Tensor]:
    """Everything by one name each."""
    weights = {f"{WEIGHTS}{name}": tensor for name, tensor in policy.trainable_state().items()}
    kept = {f"{_KEPT}{name}/{key}": tensor for name, s in snapshots.items() for key, tensor in s.state.items()}
    versions = {f"{_VERSION}{name}": torch.tensor(snapshot.version) for name, snapshot in snapshots.items()}
    return weights | moments.named(policy, optimizer) | kept | versions


def load_checkpoint(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Put the newest checkpoint in `folder` into policy and optimiser; None if there is none.

    The optimiser's settings, such as its weight decay, stay those that it was made with.

    Raises:
        ConfigError: it belongs to another model, or other layers were trained in it.
    """
    found = policy.ranks.decided(lambda: checkpoints(folder))
    if not found:
        return None
    newest = found[-1]
    raw = json.loads((newest / "progress.json").read_text(encoding="utf-8"))
    progress = Progress(policy_version=raw["policy_version"], lease_ids=tuple(raw["lease_ids"]))
    if (newest / SHARDS).is_dir():
        moments.load_shards(newest, policy, optimizer)
    else:
        moments.load_plain(newest / "optimizer.pt", optimizer)
    load_weights(newest, policy, progress.policy_version)
    return progress


def load_snapshots(folder: Path, policy: Policy | None = None) -> dict[str, Snapshot]:
    """The snapshots of the newest checkpoint in `folder`, by name; sharded as `policy` is, or else whole."""
    found = checkpoints(folder)[-1:]
    own = policy.model_state() if policy is not None else {}
    snapshots: dict[str, Snapshot] = {}
    for newest in found:
        if (newest / SHARDS).is_dir():
            snapshots |= _snapshots_of_shards(newest, own)
        for file in newest.glob(f"*{_SNAPSHOT}"):
            with safe_open(file, "pt") as tensors:
                version = int(tensors.metadata()["policy_version"])
            state = {key: parted(tensor, own.get(key, tensor)) for key, tensor in load_file(file).items()}
            snapshots[file.name.removesuffix(_SNAPSHOT)] = Snapshot(version, state)
    return snapshots


def _snapshots_of_shards(folder: Path, own: Mapping[str, torch.Tensor]) -> dict[str, Snapshot]:
    versions = {name: torch.tensor(0) for name in shards_in(folder, _VERSION)}
    states: dict[str, dict[str, torch.Tensor]] = {name: {} for name in versions}
    for place, shape in shards_in(folder, _KEPT).items():
        name, key = place.split("/", 1)
        states[name][key] = torch.zeros_like(own[key]) if key in own else torch.zeros(shape)
    wanted = {f"{_KEPT}{name}/{key}": tensor for name, state in states.items() for key, tensor in state.items()}
    read_shards(folder, wanted | {f"{_VERSION}{name}": version for name, version in versions.items()})
    return {name: Snapshot(int(versions[name]), state) for name, state in states.items()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
