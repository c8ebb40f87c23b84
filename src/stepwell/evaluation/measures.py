"""What items come to: means, pass@k, paired differences, each with its 95 % interval.

Intervals are percentile bootstraps (Efron 1979) of a fixed seed. They draw tasks, not samples: those of one task hang
together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from stepwell.errors import InvalidRequest

RESAMPLES: Final = 10_000
_AT_ONCE: Final = 4_000_000  # numbers of a block of resamples, so that memory stays flat for sets of any size


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks."""

    value: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end."""
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A paired comparison of means over the same tasks."""

    before: float
    after: float
    low: float
    """Lower end of the 95 % interval of after - before."""
    high: float
    """Upper end."""
    tasks: int

    @property
    def improved(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low > 0


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of one value per task.

    Raises:
        InvalidRequest: there are no values.
    """
    if not len(values):
        raise InvalidRequest("nothing to average: no task was played")
    low, high = _interval(np.asarray(values, np.float64))
    return Estimate(value=float(np.mean(values)), low=low, high=high, tasks=len(values))


def paired_difference(before: Sequence[float], after: Sequence[float], resamples: int = RESAMPLES) -> Difference:
    """Mean difference over tasks.

    Raises:
        InvalidRequest: the lists differ in length or are empty.
    """
    if len(before) != len(after) or not before:
        raise InvalidRequest(f"a paired comparison needs the same tasks twice, got {len(before)} and {len(after)}")
    low, high = _interval(np.array(after, np.float64) - np.array(before, np.float64), resamples)
    return Difference(before=float(np.mean(before)), after=float(np.mean(after)), low=low, high=high, tasks=len(before))


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Probability that at least one of k samples, drawn without replacement, succeeds: 1 - C(n-c, k)/C(n, k).

    The unbiased estimator of Chen et al. (arXiv 2107.03374, equation 1), for n `samples` of which c are `successes`.

    Raises:
        InvalidRequest: k is not in 1..n, or c not in 0..n.
    """
    if not 1 <= k <= samples or not 0 <= successes <= samples:
        raise InvalidRequest(f"pass@{k} of {samples} samples with {successes} successes is not defined")
    if samples - successes < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(samples - successes + 1, samples + 1)))


def _interval(values: npt.NDArray[np.float64], resamples: int = RESAMPLES) -> tuple[float, float]:
    random, count = np.random.default_rng(0), len(values)
    means: list[npt.NDArray[np.float64]] = []
    left, block = resamples, max(_AT_ONCE // count, 1)
    while left > 0:
        drawn = random.integers(count, size=(min(block, left), count))
        means.append(values[drawn].mean(axis=1))
        left -= len(drawn)
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)
