"""Runs in one number, and paired differences."""

import pytest

from experiments.compare import Compared, score_until
from experiments.run import Point
from experiments.store import Result


def point(tokens: int, score: float, *, seconds: float = 0.0, updates: int = 0) -> Point:
    return Point(tokens=tokens, steps=0, updates=updates, seconds=seconds, score=score)


def course(arm: str, seed: int, *scores: float) -> Result:
    points = tuple(point(100 * n, score, seconds=n) for n, score in enumerate(scores))
    return Result("case", arm, seed, "key", points)


def test_the_score_until_is_the_area_under_the_curve_up_to_there() -> None:
    points = [point(0, 0.0), point(100, 1.0), point(300, 1.0)]
    assert score_until(points, "tokens", 300) == pytest.approx((50 + 200) / 300)
    assert score_until(points, "tokens", 50) == pytest.approx(0.25)  # half way, it has 0.5


def test_arms_are_compared_seed_by_seed() -> None:
    """Seeds differ by far more than arms do, and yet the difference is exact."""
    results = [course("a", seed, level, level) for seed, level in enumerate((0.1, 0.5, 0.9))]
    results += [course("b", seed, level + 0.05, level + 0.05) for seed, level in enumerate((0.1, 0.5, 0.9))]
    found = Compared(results).difference("b", "a", "tokens")
    assert (found.mean, found.low, found.high, found.count) == pytest.approx((0.05, 0.05, 0.05, 3))


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
