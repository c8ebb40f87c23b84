"""The environment protocol, in Gymnasium's words, for agents that read messages and call tools."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stepwell.config import Config
from stepwell.rendering.messages import Message, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What follows an action: Gymnasium's five values, with the reward split into named parts."""

    messages: tuple[Message, ...] = ()
    """The observation: messages to append to the conversation (tool results, a user's turn). Empty at the end."""
    reward_parts: tuple[tuple[str, float], ...] = ()
    """(name, value) pairs of this step's reward; finite; empty when this step earns nothing."""
    terminated: bool = False
    """The episode reached an end of its own: solved, failed, answered."""
    truncated: bool = False
    """A limit (of turns, say) cut the episode short."""

    @property
    def reward(self) -> float:
        """Sum of the parts."""
        return sum(value for _, value in self.reward_parts)


class Environment(Protocol):
    """One episode at a time; a `TaskSet` makes one instance per running trajectory.

    Laws (tests/environments/laws.py): `reset` with the same task gives the same messages; the same actions after it
    give the same outcomes; two instances never influence each other; exactly the last outcome is terminated or
    truncated.
    """

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the agent is offered, the same for the whole episode."""
        ...

    def reset(self, task_id: str) -> tuple[Message, ...]:
        """Start the episode of `task_id`; returns the opening messages (system, user).

        Raises:
            NotFound: there is no such task.
        """
        ...

    def step(self, action: Message) -> Outcome:
        """Apply the policy's assistant message.

        Raises:
            EnvironmentFailed: the environment broke, through no fault of the policy.
        """
        ...


class TaskSet(Protocol):
    """A source of tasks with the environment that plays them."""

    @property
    def name(self) -> str:
        """Name of the task set, as in `ENVIRONMENTS`."""
        ...

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of the tasks of a split: `train` or `test`, disjoint; the order is fixed."""
        ...

    def make(self) -> Environment:
        """A fresh environment; cheap, whatever is heavy is shared."""
        ...


class TaskSetConfig(Config):
    """Settings of one task set. To add one, write one file with a subclass; see `docs/howto/add_an_environment.md`."""

    def build(self) -> TaskSet:
        """The task set with these settings."""
        raise NotImplementedError(f"{type(self).__name__} needs a build()")
