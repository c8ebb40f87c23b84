"""What cannot be read in an archive: said with file and line, then skipped or fatal."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from stepwell.errors import InvalidRecord

OnError = Literal["stop", "skip"]
_KEPT: Final = 1000
"""So many are kept in words, so that a file of another kind altogether does not fill the memory."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """One line, row or span that is not what it should be."""

    file: Path
    line: int
    """From 1: line of a text file, row of a Parquet file."""
    why: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.file}, line {self.line}: {self.why}"


@dataclass(slots=True)
class Flaws:
    """The flaws met so far."""

    on_error: OnError = "stop"
    count: int = 0
    """How many lines were skipped."""
    first: list[Flaw] = field(default_factory=list)
    """The first of them, 1,000 at most."""

    def add(self, file: Path, line: int, why: object) -> None:
        """One more. Raises InvalidRecord if flaws are fatal."""
        flaw = Flaw(file, line, str(why))
        if self.on_error == "stop":
            raise InvalidRecord(f"{flaw}; skip such lines with on_error='skip'")
        self.count += 1
        if len(self.first) < _KEPT:
            self.first.append(flaw)
