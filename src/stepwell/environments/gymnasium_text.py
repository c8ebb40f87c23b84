"""Environments of Gymnasium, or of GEM, that speak text: observations are texts, and so are actions.

Wraps `gymnasium` (https://github.com/Farama-Foundation/Gymnasium, MIT) and `gem-llm` (https://github.com/axon-rl/gem,
Apache-2.0). An action is what the policy says, whole: it is up to the environment to find a command in it. An
environment with other observations or actions, of MiniGrid say, needs a wrapper that words them; `wrapper` names one.

A task is a seed, which decides all that such an environment draws. Forks are copies where those were seen to work when
the task set was made (see `gymnasium_games`), and otherwise play the same actions again.
"""

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, Literal

from pydantic import Field

from stepwell.config import imported
from stepwell.environments.gymnasium_games import WAYS, Chance, Copy, Game, copies, plain
from stepwell.errors import ConfigError, InvalidRequest, MissingDependency, NotFound
from stepwell.rendering.messages import Message, Tool
from stepwell.rollout.env import Environment, Outcome, TaskSetConfig

_SPLITS: Final = ("train", "test")


class GymnasiumTextConfig(TaskSetConfig):
    """Settings of an environment of Gymnasium or GEM. Needs the extra `gymnasium` or `gem`."""

    id: str
    """As it is registered, such as `game:Mastermind-v0-easy`; `module:Name-v0` imports the module first, as Gymnasium
    does."""
    library: Literal["gymnasium", "gem"] = "gymnasium"
    """Where it is registered."""
    arguments: Mapping[str, Any] = Field(default_factory=dict)
    """For its constructor."""
    wrapper: str | None = None
    """A function of the environment that returns one that speaks text: `file.py:function` or `module:function`."""
    instructions: str = ""
    """The system message; none if empty."""
    tasks: int = Field(default=10_000, ge=1)
    """Seeds in each of `train` and `test`."""
    max_steps: int = Field(default=50, ge=1)
    """Actions after which an episode is truncated, if the environment does not do so earlier."""

    def build(self) -> "GymnasiumText":
        """The task set with these settings; see `GymnasiumText` for what it may raise."""
        return GymnasiumText(self)


class GymnasiumText:
    """The task set: seeds of one environment."""

    name: Final = "gymnasium_text"

    def __init__(self, config: GymnasiumTextConfig) -> None:
        """Make one environment, and see whether it speaks text and can be copied.

        Raises:
            MissingDependency: the library is not installed.
            ConfigError: there is no such environment, it cannot be made, or it does not speak text.
        """
        self._config = config
        self._library = _library(config.library)
        self._wrap: Copy = imported(config.wrapper) if config.wrapper else lambda made: made
        self._copy = self._proven()

    @property
    def fork(self) -> str:
        """How a fork is made: `spawn`, `deepcopy` or `replay`."""
        return next((name for name, way in WAYS.items() if way is self._copy), "replay")

    def tasks(self, split: str) -> Sequence[str]:
        """`train-0` … or `test-0` …

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in _SPLITS:
            raise InvalidRequest(f"no split {split!r}; use {' or '.join(_SPLITS)}")
        return [f"{split}-{number}" for number in range(self._config.tasks)]

    def make(self) -> Environment:
        """A fresh environment."""
        if self._copy is None:
            return GymnasiumEnvironment(self._made, self._config)
        return CopiedEnvironment(self._made, self._config, self._copy)

    def _made(self) -> Any:
        try:
            with Chance().lent():  # some are reset in their constructor, by nobody's seed
                return self._wrap(self._library.make(self._config.id, **self._config.arguments))
        except Exception as error:  # somebody's constructor runs here; the settings are at fault
            raise ConfigError(f"cannot make {self._config.id!r}: {type(error).__name__}: {error}") from error

    def _proven(self) -> Copy | None:
        """A way to copy that was seen to work. Raises ConfigError if the environment does not speak text."""
        seen = Game(self._made())
        opening = seen.reset(0)
        if not isinstance(opening, str):
            raise ConfigError(
                f"{self._config.id} does not speak text: it shows {type(opening).__name__}; name a `wrapper` that "
                "turns observations and actions into text"
            )
        return next((way for way in WAYS.values() if copies(way, Game(self._made()))), None)


class GymnasiumEnvironment:
    """One episode. The reward part `reward` is the environment's own."""

    tools: tuple[Tool, ...] = ()

    def __init__(self, make: Callable[[], Any], config: GymnasiumTextConfig) -> None:
        """Made by `GymnasiumText.make`."""
        self._make = make
        self._config = config
        self._game: Game | None = None
        self._steps = 0

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """The first observation.

        Raises:
            NotFound: there is no such task.
            EnvironmentFailed: the environment broke.
        """
        split, _, number = task_id.partition("-")
        if split not in _SPLITS or not (number.isascii() and number.isdecimal()):
            raise NotFound(f"there is no task {task_id!r}: they are called train-N and test-N")
        self._game, self._steps = Game(self._make()), 0
        opening = Message(role="user", content=plain(self._game.reset(_seed(task_id))))
        system = (Message(role="system", content=self._config.instructions),) if self._config.instructions else ()
        return (*system, opening)

    def step(self, action: Message) -> Outcome:
        """Do what the message says.

        Raises:
            InvalidRequest: no episode is running.
            EnvironmentFailed: the environment broke.
        """
        if self._game is None:
            raise InvalidRequest("no episode is running: call reset first")
        self._steps += 1
        seen, reward, terminated, truncated = self._game.step(plain(action.content))
        truncated = not terminated and (truncated or self._steps >= self._config.max_steps)
        if terminated or truncated:
            self.close()
        return Outcome(
            messages=() if terminated or truncated else (Message(role="user", content=plain(seen)),),
            reward_parts=(("reward", reward),),
            terminated=terminated,
            truncated=truncated,
            invalid_calls=len(action.tool_calls),  # it was offered none
        )

    def close(self) -> None:
        """Let go of the environment."""
        if self._game is not None and hasattr(self._game.inner, "close"):
            self._game.inner.close()
        self._game = None


class CopiedEnvironment(GymnasiumEnvironment):
    """An environment of which copies were seen to work."""

    def __init__(self, make: Callable[[], Any], config: GymnasiumTextConfig, way: Copy) -> None:
        """Made by `GymnasiumText.make`."""
        super().__init__(make, config)
        self._way = way

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._copied(self._game), self._steps

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        game, steps = snapshot
        self.close()
        self._game, self._steps = self._copied(game), steps

    def _copied(self, game: Game | None) -> Game | None:
        return None if game is None else game.copied(self._way)


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(f"environments of {name} need: pip install 'stepwell[{name}]'") from error


def _seed(task_id: str) -> int:
    """Of a task; those of `train` and `test` have nothing to do with each other. Every generator takes 32 bits."""
    return int.from_bytes(hashlib.sha256(f"gymnasium-{task_id}".encode()).digest()[:4], "big")
