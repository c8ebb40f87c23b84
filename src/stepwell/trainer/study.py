"""What an update does with its groups: evidence, credit, samples, optimiser steps, checkpoint. No pool, and no clock.

All of it follows from the groups and from the learner, so several ranks do it alike. What decides when is in
`stepwell.trainer.loop`, on the first rank only, which has these functions called on all of them by `Together`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from stepwell.algorithms.base import Algorithm, Inputs, Language
from stepwell.errors import ConfigError, InvalidRequest
from stepwell.policy.probe import Probe, probe
from stepwell.policy.weights import save_weights
from stepwell.trainer.checkpoint import Progress, load_checkpoint, load_snapshots, save_checkpoint
from stepwell.trainer.collate import bounded, make_samples, whiten
from stepwell.trainer.evidence import Evidence
from stepwell.trainer.sweep import sweep_update
from stepwell.trainer.update import Learner, Watch
from stepwell.types import Group, Sample


def _unknown(what: object) -> Any:
    raise ConfigError(f"the algorithm needs the model's language, which this trainer was not given: {str(what)[:80]}")


_NO_LANGUAGE: Final = Language(tokenize=_unknown, action_mask=_unknown)


@dataclass(frozen=True, slots=True)
class Learnt:
    """What became of an update's groups."""

    metrics: dict[str, float]
    samples: Sequence[Sample]
    """As the loss had them; steps that are not among them had no part in it."""


class Study:
    """One rank's learner, and how it learns by one algorithm."""

    def __init__(
        self,
        learner: Learner,
        algorithm: Algorithm,
        checkpoints: Path,
        on_micro_batch: Watch | None = None,
        language: Language = _NO_LANGUAGE,
    ) -> None:
        """`checkpoints` is a folder that all ranks see; `on_micro_batch` looks at what is about to be trained on."""
        self.learner = learner
        self.algorithm = algorithm
        self._checkpoints = checkpoints
        self._on_micro_batch = on_micro_batch
        self._evidence = Evidence(learner, algorithm, language)

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """What all ranks call together, by name."""
        return {"load": self.load, "save": self.save, "learn": self.learn, "write": self.write}

    def load(self) -> Progress | None:
        """Go on from the newest checkpoint; None if there is none. Raises ConfigError if it is of another model."""
        policy = self.learner.policy
        progress = load_checkpoint(self._checkpoints, policy, self.learner.optimizer)
        self._evidence.snapshots = load_snapshots(self._checkpoints, policy)
        return progress

    def save(self, lease_ids: Sequence[str]) -> None:
        """Write a checkpoint of the policy as it is; it remembers the leases that made it."""
        progress = Progress(policy_version=self.learner.policy.version, lease_ids=tuple(lease_ids))
        snapshots = self._evidence.snapshots
        save_checkpoint(self._checkpoints, self.learner.policy, self.learner.optimizer, progress, snapshots)

    def write(self, folder: Path) -> Probe:
        """Write the weights for whoever samples, and give what they have to compute."""
        policy = self.learner.policy
        save_weights(folder, policy)
        with torch.no_grad():
            return policy.evaluated(lambda: probe(policy))

    def learn(self, groups: Sequence[Group]) -> Learnt:
        """Make the next version of the policy; gives what was measured, and what it was trained on."""
        algorithm = self.algorithm
        if algorithm.regroup is not None:
            groups = algorithm.regroup(groups)
        self._evidence.refresh()
        groups = self._evidence.penalised(groups)
        inputs = self._evidence.inputs(groups)
        metrics = self._diagnosis(groups, inputs)
        samples = self._samples(groups, inputs)
        if not samples:
            return Learnt(metrics | self._nothing_learnt(groups), samples)
        metrics["zero_advantage_rate"] = float(np.mean([not sample.advantages.any() for sample in samples]))
        samples = bounded(whiten(samples, algorithm.whiten), algorithm.advantage_bound)
        if algorithm.sweep is not None:
            swept = sweep_update(self.learner, samples, algorithm.objective, algorithm.sweep, self._on_micro_batch)
            return Learnt(metrics | swept, samples)
        return Learnt(metrics | self.learner.update(samples, algorithm.objective, self._on_micro_batch), samples)

    def _nothing_learnt(self, groups: Sequence[Group]) -> dict[str, float]:
        """The algorithm wants none of the steps in the loss: an update all the same, counted, that changes nothing."""
        if not any(step.trainable for group in groups for t in group.trajectories for step in t.steps):
            raise InvalidRequest("none of the leased steps can be trained on: their tokens are unknown or aborted")
        with self.learner.policy.writing():
            self.learner.policy.version += 1
        return {"trained_steps": 0.0, "optimizer_steps": 0.0}

    def _diagnosis(self, groups: Sequence[Group], inputs: Inputs) -> dict[str, float]:
        told: dict[str, list[float]] = {}
        diagnose = self.algorithm.diagnose
        for facts in (diagnose(group, inputs) for group in groups) if diagnose else ():
            for name, value in facts.items():
                told.setdefault(name, []).append(value)
        teacher = self._evidence.snapshots.get("teacher")
        versions = {} if teacher is None else {"teacher_version": float(teacher.version)}
        return versions | {name: sum(values) / len(values) for name, values in told.items()}

    def _samples(self, groups: Sequence[Group], inputs: Inputs) -> list[Sample]:
        assign = self.algorithm.assign
        credits = {credit.step_id: credit for group in groups for credit in assign(group, inputs)}
        return self._evidence.completed(make_samples(groups, credits, inputs.values))
