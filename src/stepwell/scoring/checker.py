"""Answers compared as mathematics, in processes of their own: a tower of powers, say, keeps a computer algebra system
busy for ever."""

from collections.abc import Sequence
from typing import Final

from stepwell.errors import ConfigError
from stepwell.scoring.processes import Processes, serve

_SHOWN: Final = 200
"""Characters of a reference that an error repeats."""


class Checkers(Processes):
    """Processes that compare."""

    def __init__(self, seconds: float) -> None:
        """Give up a comparison after `seconds`."""
        super().__init__("stepwell.scoring.checker", "comparison", seconds)

    async def equal(self, answer: str, references: Sequence[str]) -> bool:
        """Whether `answer` equals one of `references`.

        Raises:
            EnvironmentFailed: it took too long, or the process died of it.
            ConfigError: a reference is no mathematics.
        """
        said = await self.ask(answer, list(references))
        if isinstance(said, str):
            raise ConfigError(said)
        return bool(said)


def _equal(answer: str, references: Sequence[str]) -> bool | str:
    """The verdict, or what is wrong with the references."""
    said = math_verify.parse(answer)
    for reference in references:
        # Without delimiters the library reads only the last number of a formula.
        bare = not any(mark in reference for mark in ("$", "\\boxed", "\\(", "\\["))
        gold = math_verify.parse(f"${reference}$" if bare else reference)
        if not gold:
            return f"the reference {reference[:_SHOWN]!r} cannot be read as mathematics"
        if math_verify.verify(gold, said):
            return True
    return False


if __name__ == "__main__":
    import math_verify

    serve(_equal)
