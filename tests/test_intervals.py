"""Means and their intervals."""

import numpy as np
import pytest

from stepwell.intervals import interval, student


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (4, 2.7764), (9, 2.2622), (10, 2.2281), (20, 2.0860), (60, 2.0003)]
)
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, abs=2e-4)


def test_an_interval_is_the_mean_with_students_t_times_its_standard_error() -> None:
    told = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764 * np.sqrt(2.5 / 5)
    assert (told.mean, told.low, told.high) == pytest.approx((3.0, 3 - half, 3 + half), abs=1e-3)
    assert told.sign == 1
    assert interval([-1.0, 1.0, 0.5]).sign == 0
    assert interval([-1.0, -1.1, -0.9]).sign == -1


def test_of_a_single_seed_nothing_is_decided() -> None:
    told = interval([0.7])
    assert (told.mean, told.sign, told.high) == (0.7, 0, np.inf)
