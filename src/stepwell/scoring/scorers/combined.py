"""Several scorers at once."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.scoring.base import Score, Scorer, ScorerConfig, built, closed
from stepwell.types import Trajectory

if TYPE_CHECKING:
    from stepwell.scoring.scorers import AnyScorer


class Summand(Config):
    """One scorer and what it counts for."""

    weight: float = Field(default=1.0, allow_inf_nan=False)
    """Its reward parts are multiplied by it."""
    scorer: "AnyScorer"
    """The scorer, chosen by its `use`, which may be a class of your own."""


class CombinedConfig(ScorerConfig):
    """The weighted sum of others. Each keeps its own part, weighted, so that the reward, which is the sum of its parts,
    is the weighted sum. One with nothing to say counts nothing; if one fails, nothing is scored, and those after it are
    not asked."""

    use: Literal["combined"] = "combined"
    """Names the scorer."""
    parts: tuple[Summand, ...] = Field(min_length=1)
    """What is summed."""

    def build(self) -> Scorer:
        """See `ScorerConfig`."""
        if self.part:
            raise ConfigError("combined keeps the parts of its scorers: name those, not the sum")
        return _Combined([(summand.weight, built(summand.scorer)) for summand in self.parts])


class _Combined:
    def __init__(self, summands: Sequence[tuple[float, Scorer]]) -> None:
        self._summands = summands

    async def score(self, trajectory: Trajectory) -> Score | None:
        """See `Scorer`."""
        # One after the other: there are never more at work than were allowed, and a failure leaves none behind.
        scores = [(weight, await scorer.score(trajectory)) for weight, scorer in self._summands]
        said = [(weight, score) for weight, score in scores if score is not None]
        if not said:
            return None
        whole: dict[str, float] = {}
        steps: dict[str, dict[str, float]] = defaultdict(dict)
        for weight, score in said:
            whole = _sum(whole, score.parts, weight)
            for step_id, parts in score.steps.items():
                steps[step_id] = _sum(steps[step_id], parts, weight)
        text = "\n\n".join(score.text for _, score in said if score.text)
        asked = "\n\n".join(score.asked for _, score in said if score.asked)
        return Score(parts=whole, steps=steps, text=text, asked=asked)

    async def aclose(self) -> None:
        """See `Scorer`."""
        for _, scorer in self._summands:
            await closed(scorer)


def _sum(parts: Mapping[str, float], more: Mapping[str, float], weight: float) -> dict[str, float]:
    """Both; where they have a part in common, its sum."""
    return {**parts, **{name: parts.get(name, 0.0) + weight * value for name, value in more.items()}}
