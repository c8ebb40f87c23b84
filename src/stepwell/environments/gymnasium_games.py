"""Games of Gymnasium or GEM under way: what they draw, how they break, and whether they can be copied.

**Chance.** Some games draw from generators that all of the process shares (GEM seeds those), so each is given them in
the state in which it left them, and everybody else gets theirs back.

**Copies.** Not everything can be copied, and a copy may share what it should not. So one game is copied in the middle
of an episode and all are played on, by the game's own random actions: only if the copies do the same as the original,
and what happens to one is not seen by another, are copies to be trusted. GEM's own `spawn` is tried first.
"""

import contextlib
import copy
import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from stepwell.errors import EnvironmentFailed

Copy: TypeAlias = Callable[[Any], Any]
Step: TypeAlias = tuple[Any, float, bool, bool]
"""What an action brought: observation, reward, terminated, truncated."""
_SHARED: Final = threading.Lock()
"""Held while a game has the process's random generators."""
_TRIALS: Final = 3
"""Actions before a copy, and after it, when it is tried out."""


@dataclass
class Chance:
    """The state of the generators that all of a process shares, as one environment left them."""

    state: tuple[Any, Any] = field(default_factory=lambda: (random.Random(0).getstate(), _numpy_state(0)))

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Give the environment its generators, and everybody else theirs back."""
        with _SHARED:
            others = random.getstate(), np.random.get_state()
            random.setstate(self.state[0])
            np.random.set_state(self.state[1])
            try:
                yield
            finally:
                self.state = random.getstate(), np.random.get_state()
                random.setstate(others[0])
                np.random.set_state(others[1])


@dataclass
class Game:
    """An environment of the library, with its share of chance."""

    inner: Any
    chance: Chance = field(default_factory=Chance)

    def reset(self, seed: int) -> Any:
        """The first observation. Raises EnvironmentFailed, as all that follow."""
        with self._guarded("reset"):
            return self.inner.reset(seed=seed)[0]

    def step(self, action: str) -> Step:
        """What an action brings."""
        with self._guarded("step"):
            seen, reward, terminated, truncated, _ = self.inner.step(action)
            if not math.isfinite(reward):
                raise ValueError(f"the reward is {reward}")
            return seen, float(reward), bool(terminated), bool(truncated)

    def random_action(self) -> Any:
        """Any action that it knows; Gymnasium's are drawn from a space, GEM's by a method."""
        with self.chance.lent():
            if hasattr(self.inner, "sample_random_action"):
                return self.inner.sample_random_action()
            return self.inner.action_space.sample()

    def copied(self, way: Copy) -> "Game":
        """Itself another time."""
        with self._guarded("copy"):
            inner = way(self.inner)
        return Game(inner, Chance(self.chance.state))

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        with self.chance.lent():
            try:
                yield
            except Exception as error:  # somebody's code runs here, and may raise anything
                name = type(self.inner).__name__
                raise EnvironmentFailed(f"{name} failed to {what}: {type(error).__name__}: {error}") from error


def copies(way: Copy, game: Game) -> bool:
    """Whether a copy in the middle of an episode goes on as the original does, and neither sees the other."""
    try:
        game.reset(0)
        actions = [_sampled(game) for _ in range(2 * _TRIALS)]
        if _ended(_until_the_end(game, actions[:_TRIALS])):
            game.reset(0)  # it is over too soon to be copied in the middle
        first, second = game.copied(way), game.copied(way)
        brought = [_until_the_end(one, actions[_TRIALS:]) for one in (first, game, second)]
    except EnvironmentFailed:
        return False
    return brought[0] == brought[1] == brought[2]


def _sampled(game: Game) -> str:
    try:
        action = game.random_action()
    except (AttributeError, NotImplementedError) as error:
        raise EnvironmentFailed("it knows no random action") from error
    if not isinstance(action, str):
        raise EnvironmentFailed("its random action is no text")
    return action


def _until_the_end(game: Game, actions: Sequence[str]) -> list[Step]:
    brought: list[Step] = []
    for action in actions:
        brought.append(game.step(action))
        if _ended(brought):
            break
    return brought


def _ended(brought: Sequence[Step]) -> bool:
    return bool(brought) and (brought[-1][2] or brought[-1][3])


def _spawn(inner: Any) -> Any:
    """GEM's way to copy."""
    return inner.spawn(same_state=True)


def _deepcopy(inner: Any) -> Any:
    """Python's."""
    return copy.deepcopy(inner)


WAYS: Final[Mapping[str, Copy]] = {"spawn": _spawn, "deepcopy": _deepcopy}
"""Ways to copy, the best first."""


def plain(value: object) -> str:
    """A text that every game can be given: half a surrogate pair is none."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _numpy_state(seed: int) -> Any:
    return np.random.RandomState(seed).get_state()
