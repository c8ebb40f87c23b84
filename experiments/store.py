"""Finished runs: one line of JSON each, in one small file per study, which is part of the repository."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from experiments.design import Job
from experiments.run import Point

RESULTS: Final = Path(__file__).parent / "results"
_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    case: str
    arm: str
    seed: int
    key: str
    """Of its settings."""
    points: tuple[Point, ...]


class Store:
    """The finished runs of one study."""

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._results = {(result.case, result.arm, result.seed): result for result in map(_read, lines)}

    def find(self, job: Job) -> Result | None:
        """The job's result; None if it was not run, or with other settings."""
        found = self._results.get((job.case, job.arm, job.seed))
        return found if found is not None and found.key == job.config.key else None

    def found(self, jobs: Iterable[Job]) -> list[Result]:
        """What there is of them."""
        return [result for job in jobs if (result := self.find(job)) is not None]

    def put(self, job: Job, points: Sequence[Point]) -> None:
        """Keep a run from now on, in place of one with other settings."""
        self._results[job.case, job.arm, job.seed] = Result(job.case, job.arm, job.seed, job.config.key, tuple(points))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(map(_written, self._sorted())), encoding="utf-8")
        partial.replace(self._path)

    def _sorted(self) -> list[Result]:
        return [self._results[name] for name in sorted(self._results)]


def _written(result: Result) -> str:
    """Point by point would name each number again, so it is column by column."""
    columns = {f.name: [_short(getattr(point, f.name)) for point in result.points] for f in fields(Point)}
    facts = {"case": result.case, "arm": result.arm, "seed": result.seed, "key": result.key}
    return json.dumps({**facts, "points": columns}, separators=(",", ":")) + "\n"


def _short(value: Any) -> Any:
    return round(value, _DIGITS) if isinstance(value, float) else value


def _read(line: str) -> Result:
    told = json.loads(line)
    columns = told.pop("points")
    rows = zip(*columns.values(), strict=True)
    return Result(**told, points=tuple(Point(**dict(zip(columns, row, strict=True))) for row in rows))
