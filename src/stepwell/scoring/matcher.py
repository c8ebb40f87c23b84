"""Patterns that somebody gives, searched for in processes of their own: one that tries every way to split a text never
ends, and lets nobody else in this process do anything meanwhile."""

import re
from typing import Final

from stepwell.errors import ConfigError
from stepwell.scoring.processes import Processes, serve

_SHOWN: Final = 100
"""Characters of what was found that an error repeats."""


def checked(pattern: str) -> str:
    """`pattern`, which is a regular expression. Raises ValueError if it is none."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


class Matchers(Processes):
    """Processes that search."""

    def __init__(self, seconds: float) -> None:
        """Give up a search after `seconds`."""
        super().__init__("stepwell.scoring.matcher", "search", seconds)

    async def number(self, pattern: str, text: str) -> float | None:
        """What group 1 of `pattern` holds where it is found last in `text`; 1 if it has no group; None if it is not
        found.

        Raises:
            EnvironmentFailed: it took too long, or the process died of it.
            ConfigError: the group holds no number.
        """
        said = await self.ask(pattern, text)
        if isinstance(said, str):
            raise ConfigError(said)
        return said if isinstance(said, float) else None


def _number(pattern: str, text: str) -> float | str | None:
    """The number, or what is wrong with it."""
    last = None
    for match in re.finditer(pattern, text):
        last = match
    if last is None:
        return None
    if not last.re.groups:
        return 1.0
    found = last[1]
    if found is None:
        return "group 1 of the pattern took no part where the pattern was found last"
    try:
        return float(found)
    except ValueError:
        return f"group 1 of the pattern holds {found[:_SHOWN]!r}, which is no number"


if __name__ == "__main__":
    serve(_number)
