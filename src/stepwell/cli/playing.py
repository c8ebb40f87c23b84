"""What of a recipe concerns those who play. They need no torch, so they start at once and take little memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Algorithm, AlgorithmConfig
from stepwell.cli.parts import RECIPE_FILE
from stepwell.config import Config, component_config, load_config
from stepwell.errors import NotFound
from stepwell.rollout.agent import ChatAgentConfig
from stepwell.rollout.run import RolloutConfig


class PlayConfig(Config):
    """A run, for those who play for it."""

    name: str = Field(default="run", pattern=r"^[\w.-]+$")
    """Name of the run, shown wherever its data are."""
    environment: Mapping[str, Any] = Field(default_factory=lambda: {"use": "lookup"})
    """`use`: a name in `ENVIRONMENTS` or a class; the other keys are its settings."""
    rewards: tuple[Mapping[str, Any], ...] = ()
    """Scorers, such as `judge`, whose parts are added to what the environment gives. Each has a `use`: a name in
    `SCORERS` or a class; the other keys are its settings."""
    algorithm: Mapping[str, Any] = Field(default_factory=lambda: {"use": "steppo"})
    """`use`: a name in `ALGORITHMS` or a class; the other keys are its settings."""
    agent: ChatAgentConfig = ChatAgentConfig()
    """The built-in agent."""
    rollout: RolloutConfig = RolloutConfig()
    """How trajectories are run."""


def read_play(folder: Path, overrides: Sequence[str] = ()) -> PlayConfig:
    """What the run in `folder` is, for those who play. Raises NotFound."""
    if not (folder / RECIPE_FILE).exists():
        raise NotFound(f"{folder} holds no run: it has no {RECIPE_FILE}")
    return load_config(PlayConfig, folder / RECIPE_FILE, overrides, only=PlayConfig.model_fields)


def build_algorithm(recipe: PlayConfig) -> Algorithm:
    """The recipe's algorithm. Raises ConfigError."""
    return component_config(ALGORITHMS, AlgorithmConfig, recipe.algorithm).build()
