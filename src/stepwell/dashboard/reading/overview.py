"""What the first page shows: counts, learning curves, and the newest trajectories."""

from dataclasses import dataclass
from typing import Final

from stepwell.pool.base import Pool, PoolStats, TrajectorySummary
from stepwell.pool.fidelity import Fidelity, fidelity
from stepwell.types import UpdateInfo

NEWEST: Final = 50
"""Trajectories that the overview lists."""

REWARD_METRIC: Final = "reward_mean"
"""The metric of an update that the learning curve shows: mean reward of its trajectories."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The learning curve of one training run."""

    run: str
    points: tuple[tuple[int, float], ...]
    """(policy version, mean reward), oldest first."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The first page."""

    stats: PoolStats
    curves: tuple[Curve, ...]
    newest: tuple[TrajectorySummary, ...]
    """At most `NEWEST`, newest first."""
    fidelity: tuple[Fidelity, ...]
    """Drift, per model and agent that called."""


def read_overview(pool: Pool) -> Overview:
    """Counts, curves and the newest trajectories."""
    newest = tuple(summary for _, summary in pool.trajectories(limit=NEWEST))
    lines = tuple(fidelity(pool.forks()))
    return Overview(stats=pool.stats(), curves=_curves(pool.updates()), newest=newest, fidelity=lines)


def _curves(updates: list[UpdateInfo]) -> tuple[Curve, ...]:
    points: dict[str, list[tuple[int, float]]] = {}
    for update in updates:
        reward = dict(update.metrics).get(REWARD_METRIC)
        if reward is not None:
            points.setdefault(update.run, []).append((update.policy_version, reward))
    return tuple(Curve(run, tuple(run_points)) for run, run_points in points.items())
