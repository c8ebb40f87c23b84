"""Means, paired differences and their intervals."""

import numpy as np
import pytest

from experiments.compare import Compared, interval, score_until, student
from experiments.run import Point
from experiments.store import Result


def point(tokens: int, score: float, *, seconds: float = 0.0, updates: int = 0) -> Point:
    return Point(tokens=tokens, steps=0, updates=updates, seconds=seconds, score=score)


def course(arm: str, seed: int, *scores: float) -> Result:
    points = tuple(point(100 * n, score, seconds=n) for n, score in enumerate(scores))
    return Result("case", arm, seed, "key", points)


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


def test_the_score_until_is_the_area_under_the_curve_up_to_there() -> None:
    points = [point(0, 0.0), point(100, 1.0), point(300, 1.0)]
    assert score_until(points, "tokens", 300) == pytest.approx((50 + 200) / 300)
    assert score_until(points, "tokens", 50) == pytest.approx(0.25)  # half way, it has 0.5


def test_arms_are_compared_seed_by_seed() -> None:
    """Seeds differ by far more than arms do, and yet the difference is exact."""
    results = [course("a", seed, level, level) for seed, level in enumerate((0.1, 0.5, 0.9))]
    results += [course("b", seed, level + 0.05, level + 0.05) for seed, level in enumerate((0.1, 0.5, 0.9))]
    found = Compared(results).difference("b", "a", "tokens")
    assert (found.mean, found.low, found.high, found.seeds) == pytest.approx((0.05, 0.05, 0.05, 3))


def test_seeds_that_one_arm_lacks_are_left_out() -> None:
    compared = Compared([course("a", 1, 0.0, 1.0), course("a", 2, 0.0, 1.0), course("b", 2, 0.0, 0.5)])
    assert (compared.seeds, compared.values("a", "end"), compared.values("b", "end")) == ([2], [1.0], [0.5])


def test_equal_time_ends_where_the_quickest_of_that_seed_ends() -> None:
    """The slow one has had one of its two trials by then, and nothing after that counts."""
    slow = Result("case", "slow", 1, "key", (point(0, 0.0), point(1, 0.4, seconds=2.0), point(2, 1.0, seconds=4.0)))
    quick = Result("case", "quick", 1, "key", (point(0, 0.0), point(1, 0.4, seconds=1.0), point(2, 0.4, seconds=2.0)))
    compared = Compared([slow, quick])
    assert compared.values("slow", "seconds") == pytest.approx([0.2])
    assert compared.values("quick", "seconds") == pytest.approx([0.3])
