"""ALFWorld: a household in text, with six types of tasks."""

from stepwell.environments.alfworld.making import make_games
from stepwell.environments.alfworld.tasks import SPLITS, TASK_TYPES, AlfWorld, AlfWorldConfig, TaskType

__all__ = ["SPLITS", "TASK_TYPES", "AlfWorld", "AlfWorldConfig", "TaskType", "make_games"]
