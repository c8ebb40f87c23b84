"""A pattern in the final answer."""

import re
from typing import Literal

from pydantic import Field, field_validator

from stepwell.scoring.base import Measured, Scorer, ScorerConfig, final_answer, last_match
from stepwell.types import Trajectory


class RegexConfig(ScorerConfig):
    """1 if the pattern is found in the final answer; or, if it has a group, the number that group 1 holds."""

    use: Literal["regex"] = "regex"
    """Names the scorer."""
    pattern: str
    """A regular expression of Python's; the last place where it is found counts."""
    missing: float | None = Field(default=0.0, allow_inf_nan=False)
    """Reward if it is not found; None: nothing is said."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern

    def build(self) -> Scorer:
        """See `ScorerConfig`."""
        compiled = re.compile(self.pattern)

        def measure(trajectory: Trajectory) -> float | None:
            answer = final_answer(trajectory)
            return None if answer is None else self._value(compiled, answer)

        return Measured(self.name, measure)

    def _value(self, compiled: re.Pattern[str], answer: str) -> float | None:
        last = last_match(compiled, answer)
        if last is None:
            return self.missing
        return float(last[1]) if compiled.groups else 1.0
