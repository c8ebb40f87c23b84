"""A tracked run, without the training."""

from pathlib import Path

from stepwell.cli.tracking.base import TrackedRun, TrackerConfig, tracked_run
from stepwell.cli.tracking.feed import tracking
from stepwell.types import UpdateInfo

RECIPE = {"name": "tiny", "learner": {"lr": 0.001, "betas": [0.9, 0.95]}, "agent": {}, "pool": None}


def run_in(folder: Path) -> TrackedRun:
    folder.mkdir(parents=True, exist_ok=True)
    return tracked_run("tiny", folder, RECIPE)


def update(version: int, **metrics: float) -> UpdateInfo:
    return UpdateInfo(run="tiny", policy_version=version, metrics=tuple(metrics.items()), created_at=1000.0 + version)


def track(config: TrackerConfig, folder: Path, *versions: int, reward: float = 0.5) -> None:
    """A process that trains these versions, tracked; mean reward `reward` + version."""
    with tracking([config], run_in(folder)) as hand_over:
        for version in versions:
            hand_over(update(version, reward_mean=reward + version, **{"reward/odd name!": 1.0}))
