"""A pattern in the final answer."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stepwell.scoring.base import Score, Scorer, ScorerConfig, final_answer
from stepwell.scoring.matcher import Matchers, checked
from stepwell.types import Trajectory


class RegexConfig(ScorerConfig):
    """1 if the pattern is found in the final answer; or, if it has a group, the number that group 1 holds."""

    use: Literal["regex"] = "regex"
    """Names the scorer."""
    pattern: Annotated[str, AfterValidator(checked)]
    """A regular expression of Python's; the last place where it is found counts."""
    missing: float | None = Field(default=0.0, allow_inf_nan=False)
    """Reward if it is not found; None: nothing is said."""
    seconds: float = Field(default=10.0, gt=0)
    """Longest time for one search; then the trajectory counts as failed."""

    def build(self) -> Scorer:
        """See `ScorerConfig`."""
        return _Regex(self)


class _Regex:
    def __init__(self, config: RegexConfig) -> None:
        self._config = config
        self._matchers = Matchers(config.seconds)

    async def score(self, trajectory: Trajectory) -> Score | None:
        """See `Scorer`."""
        answer = final_answer(trajectory)
        if answer is None:
            return None
        found = await self._matchers.number(self._config.pattern, answer)
        value = self._config.missing if found is None else found
        return None if value is None else Score(parts={self._config.name: value})

    async def aclose(self) -> None:
        """See `Scorer`."""
        await self._matchers.aclose()
