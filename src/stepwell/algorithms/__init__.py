"""Credit assignment: one small file per algorithm, pure functions of arrays, and the table that names them."""

from collections.abc import Mapping
from typing import Final

from stepwell.algorithms.base import AlgorithmConfig
from stepwell.algorithms.grpo import GRPO
from stepwell.algorithms.ppo import PPO
from stepwell.algorithms.steppo import StepPO

ALGORITHMS: Final[Mapping[str, type[AlgorithmConfig]]] = {
    "grpo": GRPO,
    "ppo": PPO,
    "steppo": StepPO,
}
"""The algorithms by the name that a recipe or `--algorithm` gives."""
