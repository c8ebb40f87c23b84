"""The environment protocol, in Gymnasium's words, for agents that read messages and call tools."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from stepwell.config import Config
from stepwell.rendering.messages import Message, Tool

_T = TypeVar("_T")
MaybeAwaitable: TypeAlias = _T | Awaitable[_T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What follows an action: Gymnasium's five values, with the reward split into named parts."""

    messages: tuple[Message, ...] = ()
    """The observation: messages to append to the conversation (tool results, a user's turn). Empty at the end."""
    reward_parts: tuple[tuple[str, float], ...] = ()
    """(name, value) pairs of this step's reward; finite; empty when this step earns nothing."""
    measured: tuple[tuple[str, float], ...] = ()
    """(name, value) pairs that papers report beside the reward, such as `f1`; an evaluation tells the last of each."""
    terminated: bool = False
    """The episode reached an end of its own: solved, failed, answered."""
    truncated: bool = False
    """A limit (of turns, say) cut the episode short."""
    invalid_calls: int = 0
    """Tool calls of the action that named no tool, or had arguments that the tool does not take: for statistics."""

    @property
    def reward(self) -> float:
        """Sum of the parts."""
        return sum(value for _, value in self.reward_parts)


class Environment(Protocol):
    """One episode at a time; a `TaskSet` makes one instance per running trajectory.

    `reset` and `step` may be plain functions, which then run in a thread, or `async` ones. What an environment can do
    beyond this protocol it shows by having the methods of `Forkable`, `Unforkable`, `Hashed` or `Closing`.

    Laws (tests/environments/laws.py): `reset` with the same task and seed gives the same messages; the same actions
    after it give the same outcomes; two instances never influence each other; exactly the last outcome is terminated
    or truncated; a fork goes on as the original would, and neither is changed by what the other does.
    """

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the agent is offered, the same for the whole episode."""
        ...

    def reset(self, task_id: str, *, seed: int = 0) -> MaybeAwaitable[tuple[Message, ...]]:
        """Start the episode of `task_id`; returns the opening messages (system, user).

        `seed` decides all that is drawn during the episode; an environment that draws nothing ignores it.

        Raises:
            NotFound: there is no such task.
        """
        ...

    def step(self, action: Message) -> MaybeAwaitable[Outcome]:
        """Apply the policy's assistant message.

        Raises:
            EnvironmentFailed: the environment broke, through no fault of the policy.
        """
        ...


@runtime_checkable
class Forkable(Protocol):
    """Has a state that can be taken and put back. Others are forked by playing their actions again."""

    def snapshot(self) -> MaybeAwaitable[object]:
        """The state of the episode now. Nothing that happens later changes it."""
        ...

    def restore(self, snapshot: Any) -> MaybeAwaitable[None]:
        """Go on from a state that any environment of the same task set gave; it may be used again."""
        ...


@runtime_checkable
class Unforkable(Protocol):
    """Cannot be played again, since what it does lasts, or since it never does the same twice."""

    @property
    def no_fork(self) -> str:
        """Why."""
        ...


@runtime_checkable
class Hashed(Protocol):
    """Can tell more of its state than its messages do: playing an episode again is checked against that as well."""

    def state_hash(self) -> MaybeAwaitable[bytes]:
        """Equal for equal states; a few bytes."""
        ...


@runtime_checkable
class Closing(Protocol):
    """Holds what must be let go of at the end: a process, a connection."""

    def close(self) -> MaybeAwaitable[None]:
        """End the episode, wherever it is. Nothing else is called afterwards."""
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
