"""Presets: an algorithm with the hyperparameters that a paper, or its code, was published with; one file each.

They are data. A preset says where each number comes from, and where paper and code differ. What was published about
rollouts stands beside it, for the models and environments that it was published for.
"""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import AlgorithmConfig
from stepwell.config import Config, component_config, load_config
from stepwell.errors import ConfigError

_FOLDER: Final = Path(__file__).parent


class Source(Config):
    """Where a preset comes from."""

    paper: str
    """Title and arXiv number."""
    version: str
    """Of the paper, or of the code: its date or commit."""
    read: str
    """What the numbers were read in."""


class PublishedRollout(Config):
    """What was published about collecting the data; null: nothing."""

    models: tuple[str, ...] = ()
    """Names of the models that were trained."""
    groups_per_update: int | None = Field(default=None, ge=1)
    """Tasks per update."""
    group_size: int | None = Field(default=None, ge=1)
    """Trajectories per task."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature."""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """Longest prompt of a step."""
    response_tokens: int | None = Field(default=None, ge=1)
    """Longest response of a step."""
    max_steps: int | None = Field(default=None, ge=1)
    """Steps after which a trajectory is truncated."""


class Preset(Config):
    """An algorithm as it was published."""

    source: Source
    """Where it comes from."""
    differs: tuple[str, ...] = ()
    """Where the released code differs from the paper, or this from either."""
    algorithm: Mapping[str, Any]
    """A recipe's section `algorithm`."""
    learner: Mapping[str, Any] = Field(default_factory=dict)
    """A recipe's section `learner`, as far as it was published."""
    rollout: PublishedRollout = PublishedRollout()
    """How the data were collected."""
    notes: tuple[str, ...] = ()
    """What else to know before comparing with it."""

    @property
    def overrides(self) -> list[str]:
        """What it changes in a recipe, as `section.key=value`: the algorithm, and of the learner what was published."""
        algorithm = {"use": self.algorithm["use"], **self.algorithm}  # first, for it makes earlier settings void
        sections = {"algorithm": algorithm, "learner": self.learner}
        return [f"{name}.{key}={json.dumps(value)}" for name, part in sections.items() for key, value in part.items()]


def preset_names() -> list[str]:
    """All presets, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_preset(name: str) -> Preset:
    """The preset, with its algorithm's settings checked.

    Raises:
        ConfigError: there is no such preset, and which is nearest; or its file is wrong.
    """
    names = preset_names()
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(names)}"
        raise ConfigError(f"there is no preset {name!r}; {hint}")
    preset = load_config(Preset, _FOLDER / f"{name}.yaml")
    try:
        component_config(ALGORITHMS, AlgorithmConfig, preset.algorithm)
    except ConfigError as error:
        raise ConfigError(f"preset {name}: {error}") from error
    return preset
