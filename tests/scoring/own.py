"""A scorer that Stepwell does not ship."""

from stepwell.scoring.base import Measured, Scorer, ScorerConfig


class Always(ScorerConfig):
    """The same for everybody."""

    value: float

    def build(self) -> Scorer:
        return Measured(self.name, lambda trajectory: self.value)


class Unfinished(ScorerConfig):
    """Somebody forgot to write `build`."""


class Broken(ScorerConfig):
    """Cannot be made."""

    def build(self) -> Scorer:
        raise LookupError("no weights here")


class Nothing(ScorerConfig):
    """Makes something else."""

    def build(self) -> Scorer:
        return None  # type: ignore[return-value]


class Stuck(ScorerConfig):
    """Cannot be closed."""

    def build(self) -> Scorer:
        return _Stuck(self.name, lambda trajectory: 1.0)


class _Stuck(Measured):
    async def aclose(self) -> None:
        raise OSError("it is gone")
