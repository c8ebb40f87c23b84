"""What an episode with tools earns: a function of somebody's, or a right answer."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, SupportsFloat

from stepwell.config import imported
from stepwell.errors import ConfigError, EnvironmentFailed, StepwellError
from stepwell.rollout.episode import called
from stepwell.scoring.answers import exact_match


@dataclass(frozen=True, slots=True)
class Used:
    """A call of a tool."""

    name: str
    arguments: Mapping[str, Any]
    result: str
    """What the agent read."""


@dataclass(frozen=True, slots=True)
class Played:
    """An episode at its end, for the reward function."""

    task: Mapping[str, Any]
    """The row of the task."""
    answer: str = ""
    """The agent's last message, or what a tool raised `Finished` with; empty where the turns ran out."""
    calls: tuple[Used, ...] = ()
    """All calls that reached a tool, in order."""
    truncated: bool = False
    """The turns ran out."""
    world: Any = None
    """The object whose methods are the tools; None if they are functions."""


Parts = tuple[tuple[str, float], ...]

FOREIGN: Final = (Exception, SystemExit)
"""What somebody's code may raise of its own accord."""
_ANSWER: Final = "answer"
_REWARD: Final = "reward"


@dataclass(frozen=True, slots=True)
class Reward:
    """Rewards an episode. Made by `named_reward`."""

    name: str
    function: Callable[[Played], Any]

    async def of(self, played: Played) -> Parts:
        """The parts of the reward.

        Raises:
            EnvironmentFailed: the function failed, or gave no finite number.
        """
        said = await fallible(f"{self.name} failed", self.function, played)
        named = said if isinstance(said, Mapping) else {_REWARD: said}
        return tuple((str(part), self._finite(value)) for part, value in named.items())

    def _finite(self, value: object) -> float:
        number = float(value) if isinstance(value, SupportsFloat) else math.nan
        if not math.isfinite(number):
            raise EnvironmentFailed(f"{self.name} gave {value!r:.80}; it must give a finite number, or several by name")
        return number


async def fallible(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What somebody's function gives. Raises EnvironmentFailed for what it raises, except for errors of our own."""
    try:
        return await called(function, *arguments)
    except StepwellError:
        raise
    except FOREIGN as error:
        raise EnvironmentFailed(f"{what}: {type(error).__name__}: {error}") from error


def named_reward(reference: str | None) -> Reward:
    """The function that is named as `path/file.py:name` or `module:name`, or, if None, whether the answer is right.

    A right answer is equal to the task's field `answer`, or to one of them if it is a list, as words: without case,
    punctuation and articles.

    Raises:
        ConfigError: the name leads to no function.
    """
    if reference is None:
        return Reward("the check of the answer", _right)
    function = imported(reference)
    if not callable(function):
        raise ConfigError(f"{reference} is not a function of a Played")
    return Reward(reference, function)


def _right(played: Played) -> dict[str, float]:
    wanted = played.task.get(_ANSWER)
    listed = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
    return {_ANSWER: exact_match(played.answer, [str(one) for one in listed])}
