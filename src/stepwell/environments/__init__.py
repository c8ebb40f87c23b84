"""Task sets and their environments, one file each, and the table that names them."""

from collections.abc import Mapping
from typing import Final

from stepwell.environments.black_box import BlackBoxConfig
from stepwell.environments.chain import ChainConfig
from stepwell.environments.functions import FunctionsConfig
from stepwell.environments.lookup import LookupConfig
from stepwell.environments.math_python import MathPythonConfig
from stepwell.environments.search_qa import SearchQAConfig
from stepwell.rollout.env import TaskSetConfig

ENVIRONMENTS: Final[Mapping[str, type[TaskSetConfig]]] = {
    "black_box": BlackBoxConfig,
    "chain": ChainConfig,
    "functions": FunctionsConfig,
    "lookup": LookupConfig,
    "math_python": MathPythonConfig,
    "search_qa": SearchQAConfig,
}
"""The task sets by the name that a recipe or `--environment` gives."""
