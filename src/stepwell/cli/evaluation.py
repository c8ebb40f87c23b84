"""Held-out evaluation before and after, on the same tasks, with an interval for the difference."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepwell.cli.training import TrainingRun
from stepwell.errors import InvalidRequest
from stepwell.rollout.statistics import Typed, statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A paired comparison of mean rewards."""

    before: float
    after: float
    low: float
    """Lower end of the 95 % interval of after - before."""
    high: float
    """Upper end."""
    tasks: int

    @property
    def improved(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low > 0


def paired_difference(before: Sequence[float], after: Sequence[float], resamples: int = 10_000) -> Difference:
    """Mean difference over tasks with its 95 % interval: percentile bootstrap over tasks (Efron 1979), fixed seed.

    Raises:
        InvalidRequest: the lists differ in length or are empty.
    """
    if len(before) != len(after) or not before:
        raise InvalidRequest(f"a paired comparison needs the same tasks twice, got {len(before)} and {len(after)}")
    differences = np.array(after, np.float64) - np.array(before, np.float64)
    drawn = np.random.default_rng(0).integers(len(differences), size=(resamples, len(differences)))
    low, high = np.percentile(differences[drawn].mean(axis=1), [2.5, 97.5])
    return Difference(
        before=float(np.mean(before)), after=float(np.mean(after)), low=float(low), high=float(high), tasks=len(before)
    )


async def evaluate_once(run: TrainingRun, label: str, task_ids: Sequence[str], temperature: float) -> list[float]:
    """Rewards of one trajectory per task; kept in the run's folder, so that a resumed run does not ask again.

    A trajectory that failed counts as 0: the policy did not solve the task, whatever the reason.
    """
    file = run.folder / f"evaluation-{label}.json"
    if file.exists():
        rewards: list[float] = json.loads(file.read_text(encoding="utf-8"))["rewards"]
        return rewards
    endings = await run.evaluate(task_ids, temperature)
    rewards = [ending.reward for ending in endings]
    facts = {"policy_version": run.served.policy.version, "temperature": temperature, "tasks": list(task_ids)}
    told = statistics(endings, run.tasks.task_type if isinstance(run.tasks, Typed) else None)
    _write(file, json.dumps(facts | {"rewards": rewards, "statistics": told}))
    return rewards


def _write(file: Path, text: str) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.rename(file)
