"""Credit on a page is what the algorithm itself gives, or a sentence that says why there is none."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Inputs
from stepwell.dashboard.reading.credit import NAMES, read_credit
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Record, TrajectoryInfo
from tests.pool.builders import make_step


def member(name: str, reward: float | None, group: str | None = "g", steps: int = 2) -> list[Record]:
    taken = [make_step(name, index, prompt=range(1, 3 + index)) for index in range(steps)]
    earned = [] if reward is None else [Annotation.reward("trajectory", name, reward)]
    return [TrajectoryInfo(id=name, group_id=group), *taken, *earned, Annotation.end(name, "terminated")]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    """A group of which two are complete, one is open, one unrewarded, one rejected."""
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    pool.put(GroupInfo(id="g", task_id="", size=2), *member("a", 1.0), *member("b", 0.0))
    pool.put(TrajectoryInfo(id="open", group_id="g"), *member("unrewarded", None), *member("rejected", 5.0))
    pool.put(Annotation.verdict("trajectory", "rejected", "reject"))
    yield pool
    pool.close()


@pytest.mark.parametrize("name", ["grpo", "rloo", "gigpo", "reinforce_pp", "seeupo"])
def test_credit_is_what_the_algorithm_gives_over_the_complete_members(pool: SQLitePool, name: str) -> None:
    shown = read_credit(pool, name, pool.trajectory("a").info)
    whole = pool.group("g")
    usable = tuple(one for one in whole.trajectories if one.info.id in ("a", "b"))
    given = ALGORITHMS[name]().build().assign(type(whole)(info=whole.info, trajectories=usable), Inputs())
    own = {step.id for step in pool.trajectory("a").steps}
    assert "2 complete trajectories" in shown.said
    assert {credit.step_id for credit in given} & own == set(shown.by_step)
    for credit in given:
        if credit.step_id in own:
            advantage = shown.by_step[credit.step_id]
            assert advantage.mean == pytest.approx(float(np.mean(credit.advantages)))
            assert (advantage.lowest, advantage.highest) == (credit.advantages.min(), credit.advantages.max())


@pytest.mark.parametrize("name", NAMES)
def test_each_algorithm_gives_numbers_or_says_why_not(pool: SQLitePool, name: str) -> None:
    shown = read_credit(pool, name, pool.trajectory("a").info)
    assert shown.said.endswith(".")
    assert shown.by_step or "only a training run computes" in shown.said or "cannot be applied" in shown.said


@pytest.mark.parametrize("name", ["open", "unrewarded", "rejected"])
def test_what_an_update_would_not_be_given_has_no_credit(pool: SQLitePool, name: str) -> None:
    shown = read_credit(pool, "grpo", pool.trajectory(name).info)
    assert not shown.by_step
    assert "ended, did not fail, are rewarded and not rejected" in shown.said


def test_a_trajectory_without_a_group_is_alone(pool: SQLitePool) -> None:
    pool.put(*member("lone", 3.0, group=None))
    shown = read_credit(pool, "reinforce_pp", pool.trajectory("lone").info)
    assert [advantage.mean for advantage in shown.by_step.values()] == [3.0, 3.0]
    assert "this trajectory alone" in shown.said
    assert "all its tokens" in shown.said
