"""Versions of a policy's weights as a trainer publishes them."""

from pathlib import Path

import numpy as np

from stepwell.engines.base import Weights
from stepwell.policy.adapters import export_adapter
from stepwell.policy.model import Policy
from stepwell.policy.probe import probe
from stepwell.policy.weights import export_model, save_weights


def exported(policy: Policy, folder: Path, version: int = 1, *, untied: bool = True) -> Weights:
    """A Hugging Face checkpoint, for a server."""
    export_model(policy, folder / "no tokenizer", folder / f"{version:06d}", untied=untied)
    return _told(policy, folder / f"{version:06d}", version)


def adapter(policy: Policy, folder: Path, version: int = 1) -> Weights:
    """What its adapters learnt, for a server that has the model."""
    export_adapter(policy, folder / f"{version:06d}")
    return _told(policy, folder / f"{version:06d}", version)


def saved(policy: Policy, folder: Path, version: int = 1) -> Weights:
    """What training changes, for the local engine."""
    own = folder / f"{version:06d}"
    own.mkdir(parents=True)
    save_weights(own, policy)
    return _told(policy, own, version)


def _told(policy: Policy, folder: Path, version: int) -> Weights:
    tried = probe(policy)
    return Weights(
        folder=folder,
        version=version,
        prompt_ids=np.array(tried.prompt_ids, np.int32),
        token=tried.token,
        logprob=tried.logprob,
    )
