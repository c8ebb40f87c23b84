"""An update turn by turn: see `stepwell.algorithms.base.Sweep`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from stepwell.algorithms.base import Sweep
from stepwell.algorithms.objective import Objective
from stepwell.errors import ConfigError
from stepwell.trainer.ratios import MAX_LOG_RATIO
from stepwell.trainer.scoring import Scored, response_logprobs
from stepwell.trainer.update import Learner, Updating, Watch
from stepwell.types import Floats, Sample

_MOST: Final = float(np.exp(MAX_LOG_RATIO))
"""What is carried at most: turns that each became much likelier would overflow together."""


def sweep_update(
    learner: Learner, samples: Sequence[Sample], objective: Objective, sweep: Sweep, watch: Watch | None = None
) -> dict[str, float]:
    """One update of as many optimiser steps as there are turns; gives what was measured.

    Raises as `Learner.update`, and ConfigError if the learner is set to cut an update otherwise.
    """
    if learner.config.epochs > 1 or learner.config.minibatch_steps is not None:
        raise ConfigError(
            "learner.epochs and learner.minibatch_steps have no place in an update turn by turn, which has one "
            "optimiser step for each turn: leave them out"
        )
    carried: dict[str, float] = {}
    with Updating(learner, objective, watch) as update:
        for turn in _order(samples, sweep, learner):
            part = [s for s in samples if s.index == turn]
            before = _scores(learner, part) if sweep.recompute_old else [_old(s) for s in part]
            update.step([_carrying(s, old, carried) for s, old in zip(part, before, strict=True)])
            for sample, old, new in zip(part, before, _scores(learner, part), strict=True):
                ratio = _bounded(_ratio(new, old, sweep), sweep)
                product = min(carried.get(sample.trajectory_id, 1.0) * ratio, _MOST)
                carried[sample.trajectory_id] = _bounded(product, sweep)
    return update.metrics(samples) | {"carried_ratio_mean": float(np.mean(list(carried.values())))}


def _order(samples: Sequence[Sample], sweep: Sweep, learner: Learner) -> list[int]:
    turns = sorted({sample.index for sample in samples}, reverse=sweep.order == "reverse")
    if sweep.order == "random":
        np.random.default_rng([learner.config.seed, learner.policy.version]).shuffle(turns)
    return turns


def _carrying(sample: Sample, old: Floats, carried: dict[str, float]) -> Sample:
    factor = np.float32(carried.get(sample.trajectory_id, 1.0))
    return replace(sample, advantages=sample.advantages * factor, old_logprobs=old)


def _ratio(new: Floats, old: Floats, sweep: Sweep) -> float:
    z = new.astype(np.float64) - old
    return float(np.exp(np.clip(z.sum() if sweep.ratio == "exact" else z.mean(), -20, 20)))


def _bounded(ratio: float, sweep: Sweep) -> float:
    return ratio if sweep.bounds is None else float(np.clip(ratio, *sweep.bounds))


def _old(sample: Sample) -> Floats:
    return sample.old_logprobs if len(sample.old_logprobs) else sample.logprobs


def _scores(learner: Learner, samples: Sequence[Sample]) -> list[Floats]:
    return response_logprobs(learner.policy, list(map(Scored.of, samples)), learner.config.micro_batch_tokens)
