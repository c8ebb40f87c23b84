"""Means over seeds, and how sure one can be of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_STUDENT: Final = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""By degrees of freedom, from 1."""
_NORMAL: Final = 1.959964


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval by Student's t. Of a single value the interval is unbounded."""

    mean: float
    low: float
    high: float
    count: int
    """Of values."""

    @property
    def sign(self) -> int:
        """1 or -1 where the interval is on one side of 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of at least one value."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Interval(mean, -np.inf, np.inf, count)
    half = float(student(count - 1) * np.std(values, ddof=1) / count**0.5)
    return Interval(mean, mean - half, mean + half, count)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to four digits: by a table, and from there on by Fisher's expansion."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = _NORMAL
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
