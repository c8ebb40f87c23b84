"""A scorer that Stepwell does not ship."""

from stepwell.scoring.base import Measured, Scorer, ScorerConfig


class Always(ScorerConfig):
    """The same for everybody."""

    value: float

    def build(self) -> Scorer:
        return Measured(self.name, lambda trajectory: self.value)
