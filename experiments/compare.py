"""Runs in one number each, and differences between arms that began alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from experiments.design import Measure
from experiments.run import Point
from experiments.store import Result
from stepwell.algorithms.base import Doubles
from stepwell.intervals import Interval, interval

_AXES: Final[Mapping[Measure, Callable[[Point], float]]] = {
    "tokens": lambda point: point.tokens,
    "updates": lambda point: point.updates,
    "seconds": lambda point: point.seconds,
}


def score_until(points: Sequence[Point], axis: Measure, end: float) -> float:
    """The mean score of a run from its beginning to `end` in tokens, updates or seconds, straight between trials.

    It says how fast a run got how far, and is less noisy than any single trial.
    """
    at = np.array([_AXES[axis](point) for point in points], np.float64)
    score = np.array([point.score for point in points])
    inside = at < end
    grid = np.append(at[inside], end)
    return float(np.trapezoid(np.append(score[inside], np.interp(end, at, score)), grid) / end)


class Compared:
    """The results of one case of a study, all with the same seeds."""

    def __init__(self, results: Sequence[Result]) -> None:
        """Seeds that one of the arms lacks are left out, since they cannot be compared."""
        self.arms: Final = {result.arm for result in results}
        seeds = {result.seed for result in results}
        has = {(result.arm, result.seed) for result in results}
        self.seeds: Final = sorted(seed for seed in seeds if all((arm, seed) in has for arm in self.arms))
        self._points = {(result.arm, result.seed): result.points for result in results}

    def points(self, arm: str) -> list[Sequence[Point]]:
        """Of each seed."""
        return [self._points[arm, seed] for seed in self.seeds]

    def curves(self, arm: str, axis: Measure) -> tuple[Doubles, Doubles]:
        """Its scores, [seeds, 41], straight between trials, and where in tokens, updates or seconds they are, [41]: as
        far as all arms got with all seeds, since no two runs are tried at the very same places."""
        grid = np.linspace(0, min(self._end(seed, axis) for seed in self.seeds), 41)
        scores = [
            np.interp(grid, [_AXES[axis](point) for point in points], [point.score for point in points])
            for points in self.points(arm)
        ]
        return np.array(scores), grid

    def cost(self, arm: str, what: str) -> float:
        """What a run had spent or measured by its end: the field `what` of its last point, mean over seeds."""
        return float(np.mean([getattr(points[-1], what) for points in self.points(arm)]))

    def typical(self, arm: str, what: str) -> float:
        """The mean of the field `what` over all of a run's trials, and over seeds."""
        return float(np.mean([getattr(point, what) for points in self.points(arm) for point in points[1:]]))

    def values(self, arm: str, measure: Measure) -> list[float]:
        """One number for each seed."""
        if measure == "end":
            return [points[-1].score for points in self.points(arm)]
        return [score_until(self._points[arm, seed], measure, self._end(seed, measure)) for seed in self.seeds]

    def difference(self, arm: str, control: str, measure: Measure) -> Interval:
        """Mean over seeds of arm - control: the same first policy, tasks and trials."""
        pairs = zip(self.values(arm, measure), self.values(control, measure), strict=True)
        return interval([one - other for one, other in pairs])

    def _end(self, seed: int, axis: Measure) -> float:
        """As far as all arms got with this seed."""
        ends = [_AXES[axis](points[-1]) for (_, own), points in self._points.items() if own == seed]
        return min(ends)
