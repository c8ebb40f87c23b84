"""Task sets and their environments, one file each, and the table that names them."""

from collections.abc import Mapping
from typing import Final

from stepwell.environments.black_box import BlackBoxConfig
from stepwell.environments.lookup import LookupConfig
from stepwell.environments.search_qa import SearchQAConfig
from stepwell.rollout.env import TaskSetConfig

ENVIRONMENTS: Final[Mapping[str, type[TaskSetConfig]]] = {
    "black_box": BlackBoxConfig,
    "lookup": LookupConfig,
    "search_qa": SearchQAConfig,
}
"""The task sets by the name that a recipe or `--environment` gives."""
