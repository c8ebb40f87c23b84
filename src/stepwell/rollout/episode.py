"""An episode under way: one environment, what has happened in it, and copies of it that go on from where it is.

A copy is made from a `Boundary`, the state before a turn. Where the environment can take its state (`Forkable`), that
is put into another instance. Otherwise the same actions are played again from the same task and seed, and everything
that they bring is compared with what they brought before: an environment that does not repeat itself is found out
before anybody learns from two "siblings" that were in different states.
"""

import asyncio
import hashlib
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from stepwell.errors import EnvironmentFailed, ForkRefused
from stepwell.rendering.messages import Message, Tool
from stepwell.rollout.env import Closing, Environment, Forkable, Hashed, MaybeAwaitable, Outcome, TaskSet, Unforkable
from stepwell.threads import in_thread

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Taken:
    """An action, and what tells whether it brought the same another time."""

    action: Message
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """The state of an episode before one of its turns."""

    task_id: str
    seed: int
    opening: tuple[Message, ...]
    """What `reset` gave."""
    past: tuple[Taken, ...]
    """The actions so far: as many as there were turns."""
    snapshot: object | None
    """Of a `Forkable` environment."""


class Episode:
    """Plays one environment. Made by `begin`, or by `fork` where another one was."""

    def __init__(self, environment: Environment, task_id: str, seed: int, limit: float | None) -> None:
        """Use `begin` or `fork`. `limit` are seconds that one call of the environment may take."""
        self._environment = environment
        self._task_id = task_id
        self._seed = seed
        self._limit = limit
        self._opening: tuple[Message, ...] = ()
        self._past: list[Taken] = []
        self.seconds = 0.0
        """Spent in the environment."""

    @classmethod
    async def begin(cls, tasks: TaskSet, task_id: str, *, seed: int = 0, limit: float | None = None) -> "Episode":
        """A new episode.

        Raises:
            NotFound: there is no such task.
            EnvironmentFailed: the environment broke, or took longer than `limit`.
        """
        episode = cls(tasks.make(), task_id, seed, limit)
        await episode._guarded(episode._reset)
        return episode

    @classmethod
    async def fork(cls, tasks: TaskSet, boundary: Boundary, *, limit: float | None = None) -> "Episode":
        """An episode that goes on from `boundary`.

        Raises:
            ForkRefused: the environment cannot be forked, or did not do the same again.
            EnvironmentFailed: as `begin`.
        """
        episode = cls(tasks.make(), boundary.task_id, boundary.seed, limit)
        await episode._guarded(lambda: episode._go_to(boundary))
        return episode

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages that it began with."""
        return self._opening

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the agent is offered."""
        return self._environment.tools

    @property
    def turns(self) -> int:
        """How many actions were taken since the task began, before a fork too."""
        return len(self._past)

    async def step(self, action: Message) -> Outcome:
        """Apply an action.

        Raises:
            EnvironmentFailed: the environment broke, or took longer than `limit`.
        """
        outcome = await self._call(self._environment.step, action)
        self._past.append(Taken(action, await self._digest(outcome)))
        return outcome

    async def boundary(self) -> Boundary:
        """The state now, for forks.

        Raises:
            ForkRefused: there cannot be one.
        """
        environment = self._environment
        if isinstance(environment, Unforkable):
            raise ForkRefused(f"{type(environment).__name__} cannot be forked: {environment.no_fork}")
        snapshot = await self._call(environment.snapshot) if isinstance(environment, Forkable) else None
        return Boundary(self._task_id, self._seed, self._opening, tuple(self._past), snapshot)

    async def close(self) -> None:
        """Let go of what the environment holds."""
        if isinstance(self._environment, Closing):
            await self._call(self._environment.close)

    async def _guarded(self, start: Callable[[], Awaitable[None]]) -> None:
        try:
            await start()
        except BaseException:
            await self.close()
            raise

    async def _reset(self) -> None:
        self._opening = await self._call(self._environment.reset, self._task_id, seed=self._seed)

    async def _go_to(self, boundary: Boundary) -> None:
        if boundary.snapshot is not None and isinstance(self._environment, Forkable):
            await self._call(self._environment.restore, boundary.snapshot)
            self._opening, self._past = boundary.opening, list(boundary.past)
            return
        await self._reset()
        if self._opening != boundary.opening:
            raise ForkRefused(f"{self._named()} opened task {self._task_id!r} differently the second time")
        for turn, taken in enumerate(boundary.past):
            await self.step(taken.action)
            if self._past[-1].digest != taken.digest:
                raise ForkRefused(
                    f"{self._named()} did not do the same again after action {turn} of task {self._task_id!r}, so a "
                    "copy would be in another state; give it snapshot() and restore(), or make it repeat itself by seed"
                )

    def _named(self) -> str:
        return type(self._environment).__name__

    async def _digest(self, outcome: Outcome) -> bytes:
        state = b""
        if isinstance(self._environment, Hashed):
            state = await self._call(self._environment.state_hash)
        return hashlib.sha256(repr(outcome).encode("utf-8", "surrogatepass") + state).digest()[:16]

    async def _call(self, function: Callable[..., MaybeAwaitable[_T]], *arguments: Any, **named: Any) -> _T:
        """What a method of the environment gives, plain or `async`."""
        start = time.perf_counter()
        try:
            async with asyncio.timeout(self._limit) as limit:
                return await called(function, *arguments, **named)
        except (TimeoutError, SystemExit) as error:  # the latter would end more than the episode
            late = isinstance(error, TimeoutError) and limit.expired()
            how = f"did not return within {self._limit} s" if late else f"raised {type(error).__name__}: {error}"
            raise EnvironmentFailed(f"{self._named()}.{function.__name__} {how}") from error
        finally:
            self.seconds += time.perf_counter() - start


async def called(function: Callable[..., MaybeAwaitable[_T]], *arguments: Any, **named: Any) -> _T:
    """The result of a plain function, called in a thread, or of an `async` one."""
    if inspect.iscoroutinefunction(function):
        result: _T = await function(*arguments, **named)
        return result
    found = await in_thread(function, *arguments, **named)
    return await found if inspect.isawaitable(found) else found
