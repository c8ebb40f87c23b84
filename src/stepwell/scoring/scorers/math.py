"""The final answer means the same number, set or formula as a reference."""

import importlib.util
from pathlib import Path
from typing import Literal

from pydantic import Field

from stepwell.errors import MissingDependency
from stepwell.scoring.base import Score, Scorer, ScorerConfig, final_answer
from stepwell.scoring.checker import Checkers
from stepwell.scoring.references import References
from stepwell.types import Trajectory


class MathConfig(ScorerConfig):
    """1 if the final answer equals a reference as mathematics, else 0. Of the answer the last box, formula or number
    counts. Needs the extra `math`."""

    use: Literal["math"] = "math"
    """Names the scorer."""
    references: Path
    """See `ExactMatchConfig.references`; numbers or LaTeX, with or without `$`."""
    seconds: float = Field(default=10.0, gt=0)
    """Longest time for one comparison; then the trajectory counts as failed."""

    def build(self) -> Scorer:
        """See `ScorerConfig`."""
        if importlib.util.find_spec("math_verify") is None:
            raise MissingDependency("the scorer math needs a library: pip install 'stepwell[math]'")
        return _Math(self.name, References.read(self.references), Checkers(self.seconds))


class _Math:
    def __init__(self, part: str, references: References, checkers: Checkers) -> None:
        self._part = part
        self._references = references
        self._checkers = checkers

    async def score(self, trajectory: Trajectory) -> Score | None:
        """See `Scorer`."""
        answer, golds = final_answer(trajectory), self._references.of(trajectory)
        if answer is None or not golds:
            return None
        return Score(parts={self._part: float(await self._checkers.equal(answer, golds))})

    async def aclose(self) -> None:
        """See `Scorer`."""
        await self._checkers.aclose()
