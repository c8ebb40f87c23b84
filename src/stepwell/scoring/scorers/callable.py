"""A function of somebody's own."""

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat

from stepwell.config import imported
from stepwell.errors import ConfigError
from stepwell.scoring.base import Score, Scorer, ScorerConfig
from stepwell.types import Trajectory


class CallableConfig(ScorerConfig):
    """Whatever a Python function makes of a `stepwell.types.Trajectory`: a number, a mapping of reward parts, a
    `stepwell.scoring.base.Score`, or None for nothing to say. It may be `async`; else it is called in threads."""

    use: Literal["callable"] = "callable"
    """Names the scorer."""
    function: str
    """`path/file.py:name` or `package.module:name`."""

    def build(self) -> Scorer:
        """See `ScorerConfig`."""
        function = imported(self.function)
        if not callable(function):
            raise ConfigError(f"{self.function} is not a function of a trajectory")
        return _Called(self.name, function)


class _Called:
    def __init__(self, part: str, function: Any) -> None:
        self._part = part
        self._function = function

    async def score(self, trajectory: Trajectory) -> Score | None:
        """See `Scorer`."""
        if inspect.iscoroutinefunction(self._function):
            said = await self._function(trajectory)
        else:
            said = await asyncio.to_thread(self._function, trajectory)
        return self._understood(said)

    def _understood(self, said: object) -> Score | None:
        if said is None or isinstance(said, Score):
            return said
        if isinstance(said, Mapping):
            return Score(parts={str(name): _number(value) for name, value in said.items()})
        return Score(parts={self._part: _number(said)})

    async def aclose(self) -> None:
        """See `Scorer`."""


def _number(said: object) -> float:
    """Of whatever library."""
    if isinstance(said, SupportsFloat):
        return float(said)
    raise TypeError(f"a scorer gives a number, a mapping of numbers, a Score or None, not {type(said).__name__}")
