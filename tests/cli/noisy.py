"""The lookup task for runs in several processes: its environment prints, and so does what it starts."""

import os

from stepwell.environments.lookup import Lookup, LookupConfig, LookupTasks
from stepwell.rendering.messages import Message
from stepwell.rollout.env import Environment, TaskSet


class NoisyLookupConfig(LookupConfig):
    """Its settings."""

    def build(self) -> TaskSet:
        """The task set."""
        return NoisyTasks(self)


class NoisyTasks(LookupTasks):
    """As `LookupTasks`."""

    def __init__(self, config: LookupConfig) -> None:
        super().__init__(config)
        self._turns = config.max_turns

    def make(self) -> Environment:
        """A fresh episode."""
        return Noisy(self._turns)


class Noisy(Lookup):
    """One episode."""

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        """Prints, and begins."""
        print("an environment says", task_id)
        os.system("cat; echo and what it starts says so too")
        return super().reset(task_id, seed=seed)
