"""What a scorer is: something that looks at a stored trajectory and says what it is worth.

To add one, write one file with a subclass of `ScorerConfig` whose `build` returns a `Scorer`, and either add it to the
table in `stepwell.scoring.scorers` or name it by its file (`stepwell pool rescore my_scorer.py:MyScorer`). A plain
function needs none of this: the scorer `callable` calls it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from pydantic import Field

from stepwell.config import Config
from stepwell.curation.rules.base import main_steps
from stepwell.errors import ConfigError, EngineError, StepwellError
from stepwell.rendering.wire import answer_from_json
from stepwell.types import Trajectory

FOREIGN: Final = (Exception, SystemExit)
"""What somebody's code may raise of its own accord."""
_log = logging.getLogger(__name__)


class Unusable(EngineError):
    """The scorer can score nothing, whatever it is asked: the rescoring ends, instead of failing all that is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a scorer says of one trajectory."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """Reward parts of the whole trajectory, by name."""
    steps: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Reward parts of single steps: by step id, by name."""
    text: str = ""
    """Why, in words."""
    asked: str = ""
    """What somebody was asked, if the score is an answer."""


class Scorer(Protocol):
    """Looks at trajectories, many at once, on one event loop."""

    async def score(self, trajectory: Trajectory) -> Score | None:
        """What it is worth; None if there is nothing to say. Whatever it raises is told of this trajectory alone.

        Raises:
            Unusable: nothing can be scored any more.
        """
        ...

    async def aclose(self) -> None:
        """Give back what it holds: connections, processes."""
        ...


class ScorerConfig(Config):
    """Base of the settings of scorers."""

    use: str = ""
    """Names the scorer."""
    part: str = Field(default="", max_length=256, pattern="^[^/\0\n]*$")
    """Name of the reward part that it gives; empty: as `use`. With the name of a part that was given before, it takes
    its place."""

    @property
    def name(self) -> str:
        """Name of the reward part."""
        return self.part or self.use or "score"

    def build(self) -> Scorer:
        """The scorer. Raises ConfigError for settings that cannot be, MissingDependency for a package."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `build` that gives a Scorer")


def built(config: ScorerConfig) -> Scorer:
    """The scorer, whoever wrote it. Raises ConfigError, MissingDependency."""
    name = type(config).__name__
    try:
        scorer = config.build()
    except StepwellError:
        raise
    except FOREIGN as error:
        raise ConfigError(f"{name}: the scorer cannot be made: {told(error)}") from error
    if not (hasattr(scorer, "score") and hasattr(scorer, "aclose")):
        raise ConfigError(f"{name}.build gives a {type(scorer).__name__}, which has no `score` or no `aclose`")
    return scorer


async def closed(scorer: Scorer) -> None:
    """Close it. What goes wrong is logged: what it scored is stored."""
    try:
        await scorer.aclose()
    except FOREIGN as error:
        _log.warning("the scorer %s cannot be closed: %s", type(scorer).__name__, told(error))


def told(error: BaseException) -> str:
    """What went wrong, in words; with the kind of an error that is not ours."""
    return str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}".removesuffix(": ")


class Measured:
    """A scorer made of a function that gives one number, or None; it may block, so it runs in threads."""

    def __init__(self, part: str, measure: Callable[[Trajectory], float | None]) -> None:
        """Give `measure`'s number as the reward part `part`. It is called from several threads at once."""
        self._part = part
        self._measure = measure

    async def score(self, trajectory: Trajectory) -> Score | None:
        """See `Scorer`."""
        value = await asyncio.to_thread(self._measure, trajectory)
        return None if value is None else Score(parts={self._part: value})

    async def aclose(self) -> None:
        """See `Scorer`."""


def final_answer(trajectory: Trajectory) -> str | None:
    """The text of the last answer of the agent's own work, without its reasoning; None if none was recorded.

    An answer that only calls tools has the text "".
    """
    steps = main_steps(trajectory)
    if not steps or not steps[-1].response:
        return None
    message = answer_from_json(steps[-1].response)
    return steps[-1].response if message is None else message.content
