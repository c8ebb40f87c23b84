"""Credit assignment: one small file per algorithm, pure functions of arrays, and the table that names them."""

from collections.abc import Mapping
from typing import Final

from stepwell.algorithms.agentopsd import AgentOPSD
from stepwell.algorithms.base import AlgorithmConfig
from stepwell.algorithms.gigpo import GiGPO
from stepwell.algorithms.grpo import GRPO
from stepwell.algorithms.opsd import OPSD
from stepwell.algorithms.ppo import PPO
from stepwell.algorithms.reinforce import ReinforcePP
from stepwell.algorithms.rloo import RLOO
from stepwell.algorithms.rtpo import RTPO
from stepwell.algorithms.seeupo import SeeUPO
from stepwell.algorithms.stepopsd import StepOPSD
from stepwell.algorithms.steppo import CAPO, StepPO

ALGORITHMS: Final[Mapping[str, type[AlgorithmConfig]]] = {
    "agentopsd": AgentOPSD,
    "capo": CAPO,
    "gigpo": GiGPO,
    "grpo": GRPO,
    "opsd": OPSD,
    "ppo": PPO,
    "reinforce_pp": ReinforcePP,
    "rloo": RLOO,
    "rtpo": RTPO,
    "seeupo": SeeUPO,
    "stepopsd": StepOPSD,
    "steppo": StepPO,
}
"""The algorithms by the name that a recipe or `--algorithm` gives."""
