"""Where the metrics of a run go besides its pool: the trackers that people have, one file each, and their table."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stepwell.cli.tracking.base import TrackerConfig
from stepwell.cli.tracking.mlflow import MLflowConfig
from stepwell.cli.tracking.tensorboard import TensorBoardConfig
from stepwell.cli.tracking.trackio import TrackioConfig
from stepwell.cli.tracking.wandb import WandbConfig
from stepwell.config import component_config

TRACKERS: Final[Mapping[str, type[TrackerConfig]]] = {
    "mlflow": MLflowConfig,
    "tensorboard": TensorBoardConfig,
    "trackio": TrackioConfig,
    "wandb": WandbConfig,
}
"""The trackers by the name that `use` gives."""


def chosen_trackers(sections: Sequence[Mapping[str, Any]]) -> list[TrackerConfig]:
    """What a recipe's `tracking` chooses. Raises ConfigError, and MissingDependency where its package is."""
    chosen = [component_config(TRACKERS, TrackerConfig, section) for section in sections]
    for config in chosen:
        config.check()
    return chosen
