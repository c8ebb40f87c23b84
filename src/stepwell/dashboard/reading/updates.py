"""The updates of all runs, read once and from then on only what is new, and curves of what they measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from statistics import fmean
from typing import Final, Literal

from stepwell.intervals import interval
from stepwell.pool.base import Pool
from stepwell.types import UpdateInfo

REWARD_METRIC: Final = "reward_mean"
"""The metric of an update that tells how well its trajectories did."""
SAMPLED: Final = "sampled_tokens"
"""The metric that counts what was sampled for an update, whatever became of it."""
_PAGE: Final = 1000

Axis = Literal["version", "tokens", "hours"]
AXES: Final[Mapping[Axis, str]] = {
    "version": "policy version",
    "tokens": "sampled tokens",
    "hours": "hours since the run's first update",
}
Point = tuple[float, float]


class UpdateLog:
    """The newest update of each (run, policy version), by run, in the order of versions."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._cursor = 0
        self._runs: dict[str, dict[int, UpdateInfo]] = {}

    def read(self, pool: Pool) -> bool:
        """Read what is new; whether there was something. Raises PoolError."""
        before = self._cursor
        while page := pool.log(after=self._cursor, limit=_PAGE, kinds=("update",)):
            for _, update in page:
                if isinstance(update, UpdateInfo):
                    self._runs.setdefault(update.run, {})[update.policy_version] = update
            self._cursor = page[-1][0]
        return self._cursor != before

    @property
    def runs(self) -> list[str]:
        """Names of the runs, those with the newest updates first."""
        last = {run: max(update.created_at for update in own.values()) for run, own in self._runs.items()}
        return sorted(last, key=lambda run: -last[run])

    @property
    def metrics(self) -> list[str]:
        """What any of them measured, the reward first."""
        names = {name for own in self._runs.values() for update in own.values() for name, _ in update.metrics}
        return sorted(names, key=lambda name: (name != REWARD_METRIC, name))

    def of(self, run: str) -> list[UpdateInfo]:
        """The updates of a run; none of one that is unknown."""
        return [update for _, update in sorted(self._runs.get(run, {}).items())]

    def newest(self, count: int) -> list[UpdateInfo]:
        """Of all runs, newest first."""
        every = [update for own in self._runs.values() for update in own.values()]
        return sorted(every, key=lambda update: -update.created_at)[:count]


def measured(update: UpdateInfo) -> dict[str, float]:
    """What an update measured, by name, as it is: also NaN and infinities, of which a person should know."""
    return dict(update.metrics)


def finite(update: UpdateInfo) -> dict[str, float]:
    """What of it can be drawn, compared and added up."""
    return {name: value for name, value in update.metrics if isfinite(value)}


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run, or of several that are averaged."""

    name: str
    points: tuple[Point, ...]
    band: tuple[tuple[float, float, float], ...] = ()
    """(x, low, high): where the mean lies with 95 % confidence; empty for a single run."""


def curve(run: str, updates: Sequence[UpdateInfo], metric: str, axis: Axis) -> Curve:
    """The curve of one run."""
    return Curve(run, tuple((x, y) for _, x, y in _placed(updates, metric, axis)))


def mean_curve(runs: Mapping[str, Sequence[UpdateInfo]], metric: str, axis: Axis) -> Curve:
    """The mean of several runs at each version that at least two of them have, with its interval."""
    at: dict[int, list[Point]] = {}
    for updates in runs.values():
        for version, x, y in _placed(updates, metric, axis):
            at.setdefault(version, []).append((x, y))
    points, band = [], []
    for _, found in sorted(at.items()):
        if len(found) < 2:
            continue
        x, values = fmean(x for x, _ in found), interval([y for _, y in found])
        points.append((x, values.mean))
        band.append((x, values.low, values.high))
    return Curve(_common(list(runs)), tuple(points), tuple(band))


def _placed(updates: Sequence[UpdateInfo], metric: str, axis: Axis) -> list[tuple[int, float, float]]:
    """(version, x, y) of the updates that measured it, and something that can be drawn."""
    x_of, found = _AXIS[axis](updates), []
    for update, x in zip(updates, x_of, strict=True):
        if (y := finite(update).get(metric)) is not None:
            found.append((update.policy_version, x, y))
    return found


def _versions(updates: Sequence[UpdateInfo]) -> list[float]:
    return [float(update.policy_version) for update in updates]


def _tokens(updates: Sequence[UpdateInfo]) -> list[float]:
    """So many were sampled up to and for each update."""
    return list(accumulate(finite(update).get(SAMPLED, 0.0) for update in updates))


def _hours(updates: Sequence[UpdateInfo]) -> list[float]:
    return [(update.created_at - updates[0].created_at) / 3600 for update in updates]


_AXIS: Final[Mapping[Axis, Callable[[Sequence[UpdateInfo]], list[float]]]] = {
    "version": _versions,
    "tokens": _tokens,
    "hours": _hours,
}


def _common(names: Sequence[str]) -> str:
    return f"mean of {len(names)}: {', '.join(sorted(names))}"
