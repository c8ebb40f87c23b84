"""Task sets and their environments, one file each, and the table that names them."""

from collections.abc import Mapping
from typing import Final

from stepwell.environments.agentdojo import AgentDojoConfig
from stepwell.environments.alfworld import AlfWorldConfig
from stepwell.environments.bfcl import BFCLConfig
from stepwell.environments.black_box import BlackBoxConfig
from stepwell.environments.chain import ChainConfig
from stepwell.environments.cipher import CipherConfig
from stepwell.environments.functions import FunctionsConfig
from stepwell.environments.gymnasium_text import GymnasiumTextConfig
from stepwell.environments.lookup import LookupConfig
from stepwell.environments.math_python import MathPythonConfig
from stepwell.environments.mcp_tools import MCPConfig
from stepwell.environments.openenv import OpenEnvConfig
from stepwell.environments.search_qa import SearchQAConfig
from stepwell.environments.textworld_express import TextWorldExpressConfig
from stepwell.environments.verifiers_env import VerifiersConfig
from stepwell.environments.verifiers_tasks import VerifiersTasksConfig
from stepwell.rollout.env import TaskSetConfig

ENVIRONMENTS: Final[Mapping[str, type[TaskSetConfig]]] = {
    "agentdojo": AgentDojoConfig,
    "alfworld": AlfWorldConfig,
    "bfcl": BFCLConfig,
    "black_box": BlackBoxConfig,
    "chain": ChainConfig,
    "cipher": CipherConfig,
    "functions": FunctionsConfig,
    "gymnasium_text": GymnasiumTextConfig,
    "lookup": LookupConfig,
    "math_python": MathPythonConfig,
    "mcp": MCPConfig,
    "openenv": OpenEnvConfig,
    "search_qa": SearchQAConfig,
    "textworld_express": TextWorldExpressConfig,
    "verifiers": VerifiersConfig,
    "verifiers_tasks": VerifiersTasksConfig,
}
"""The task sets by the name that a recipe or `--environment` gives."""
