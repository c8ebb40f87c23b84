"""The first page's figures, and when it calls for a person."""

from math import inf, nan
from pathlib import Path

import pytest

from stepwell.curation.selection import Selection
from stepwell.dashboard.reading.drift import DriftLog
from stepwell.dashboard.reading.overview import NEWEST, Overview, read_overview
from stepwell.dashboard.reading.updates import UpdateLog
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Step, TrajectoryInfo, UpdateInfo
from tests.dashboard.records import small_pool

NOW = 2_000_000_000.0
HOUR = 3600.0


@pytest.fixture
def pool(tmp_path: Path):
    pool = small_pool(tmp_path)
    yield pool
    pool.close()


@pytest.fixture
def empty(tmp_path: Path):
    pool = SQLitePool.open(tmp_path / "empty.sqlite")
    yield pool
    pool.close()


def told(pool: SQLitePool, now: float = NOW) -> Overview:
    return read_overview(pool, UpdateLog(), DriftLog(), now)


def problems(pool: SQLitePool, now: float = NOW) -> dict[str, bool]:
    return {problem.what: problem.urgent for problem in told(pool, now).problems}


def said(pool: SQLitePool, part: str) -> bool:
    return any(part in what for what in problems(pool))


def step(trajectory: str, at: float = NOW - 60, **more: object) -> Step:
    made = {"index": 0, "prompt_ids": [1], "response_ids": [2], "logprobs": [-1], "created_at": at}
    return Step(trajectory_id=trajectory, **{**made, **more})


def test_the_stages_are_the_life_of_the_data_in_order(pool: SQLitePool) -> None:
    stages = told(pool).stages
    assert [stage.name for stage in stages] == [
        "Collection",
        "Representation",
        "Curation",
        "Optimisation",
        "Consumption",
    ]
    assert [(stage.figure, stage.unit) for stage in stages] == [
        ("2", "trajectories"),
        ("2", "steps"),
        ("0", "verdicts"),
        ("0", "groups ready"),
        ("7", "policy version"),
    ]


def test_the_newest_trajectories_are_listed_newest_first_and_bounded(pool: SQLitePool) -> None:
    assert [line.info.id for line in told(pool).newest] == ["traj-2", "traj-1"]
    pool.put(*(TrajectoryInfo(id=f"more-{number}") for number in range(NEWEST + 5)))
    newest = told(pool).newest
    assert (len(newest), newest[0].info.id) == (NEWEST, f"more-{NEWEST + 4}")


def test_the_rate_is_that_of_the_last_quarter_of_an_hour(empty: SQLitePool) -> None:
    empty.put(TrajectoryInfo(id="t", created_at=NOW - 2 * HOUR))
    empty.put(step("t", NOW - 2 * HOUR), *(step("t", NOW - 60, index=i) for i in range(1, 31)))
    assert told(empty).stages[0].details == ("2.0 steps a minute lately", "0 opened in 15 minutes", "1 open now")


def test_an_empty_pool_has_no_problem(empty: SQLitePool) -> None:
    assert problems(empty) == {}


def test_verdicts_are_counted_as_they_hold_now(pool: SQLitePool) -> None:
    pool.put(Annotation.verdict("trajectory", "traj-1", "reject"))
    assert told(pool).stages[2].details[0] == "0 accepted, 1 rejected"
    pool.put(Annotation.verdict("trajectory", "traj-1", "accept"))
    assert told(pool).stages[2].details[0] == "1 accepted, 0 rejected"
    pool.put(Annotation.verdict("trajectory", "traj-1", "clear"))
    assert told(pool).stages[2].figure == "0"


def test_what_merging_saved_is_the_newest_updates(pool: SQLitePool) -> None:
    pool.put(UpdateInfo(run="run", policy_version=8, metrics=(("tree_ratio", 0.25),), created_at=NOW))
    assert told(pool).stages[3].details == ("25% of tokens computed",)


def test_a_group_that_cannot_become_ready_is_named_and_urgent(empty: SQLitePool) -> None:
    empty.put(GroupInfo(id="g", task_id="t", size=2), *(TrajectoryInfo(id=name, group_id="g") for name in "ab"))
    empty.put(*(Annotation.end(name, "failed", "gone") for name in "ab"))
    (found,) = [problem for problem in told(empty).problems if "cannot become ready" in problem.what]
    assert found.urgent
    assert "lack of 2 trajectories" in found.what
    assert found.path == "/representation?group_ids=g"


def test_an_update_that_measured_no_finite_number_is_urgent_while_it_is_the_newest_of_its_run(
    empty: SQLitePool,
) -> None:
    lost = (("loss", nan), ("reward_mean", 0.5), ("grad_norm", inf))
    empty.put(UpdateInfo(run="run", policy_version=1, metrics=lost, created_at=NOW))
    empty.put(UpdateInfo(run="other", policy_version=1, metrics=(("loss", -inf),), created_at=NOW))
    assert problems(empty) == {
        "The newest update of 'run' measured NaN for grad_norm, loss": True,
        "The newest update of 'other' measured ∞ for loss": True,
    }
    for run in ("run", "other"):
        empty.put(UpdateInfo(run=run, policy_version=2, metrics=(("loss", 1.0),), created_at=NOW))
    assert problems(empty) == {}


def test_failures_are_a_problem_for_an_hour_with_their_commonest_reason(empty: SQLitePool) -> None:
    for number, why in enumerate(("crash", "503", "503")):
        empty.put(TrajectoryInfo(id=f"t{number}", created_at=NOW - 60), Annotation.end(f"t{number}", "failed", why))
    assert problems(empty) == {"3 trajectories failed in the last hour, 2 of them: 503": True}
    assert problems(empty, NOW + 2 * HOUR) == {}


@pytest.mark.parametrize(("fork", "urgent"), [("template", False), ("tokenizer", True)])
def test_drift_is_a_problem_and_that_of_tokens_an_urgent_one(empty: SQLitePool, fork: str, urgent: bool) -> None:
    empty.put(TrajectoryInfo(id="t", agent="coder", created_at=NOW))
    first = step("t", dialect="chat", model="tiny", fork="root")
    empty.put(first, step("t", index=1, dialect="chat", model="tiny", fork=fork, parent_id=first.id))
    assert problems(empty) == {
        "1 calls of tiny with coder do not go on from what was sampled: 100.0% of those that should": urgent
    }


def test_a_trajectory_that_is_open_for_over_an_hour_is_asked_about(empty: SQLitePool) -> None:
    empty.put(TrajectoryInfo(id="t", created_at=NOW - HOUR + 10))
    assert problems(empty) == {}
    assert list(problems(empty, NOW + 20)) == ["Open for over an hour: 1 trajectory"]


def test_what_ended_without_a_reward_is_told_until_it_has_one(empty: SQLitePool) -> None:
    empty.put(TrajectoryInfo(id="t", created_at=NOW), Annotation.end("t", "terminated"))
    assert said(empty, "1 of 1 trajectories that ended have no reward")
    empty.put(Annotation.reward("trajectory", "t", 0.0))
    assert problems(empty) == {}


def test_a_lease_that_expired_is_a_problem_until_it_is_given_back(empty: SQLitePool) -> None:
    empty.put(GroupInfo(id="g", task_id="t", size=1), TrajectoryInfo(id="a", group_id="g", created_at=NOW))
    empty.put(step("a"), Annotation.reward("trajectory", "a", 1.0), Annotation.end("a", "terminated"))
    lease = empty.lease(LeaseSpec(consumer="dead", selection=Selection(), seconds=5))
    assert problems(empty, lease.expires_at - 1) == {}
    assert list(problems(empty, lease.expires_at + 1)) == [
        "The lease of 'dead' on 1 units has expired: did it die?",
    ]
    empty.release(lease.id)
    assert problems(empty, lease.expires_at + 1) == {}


def test_urgent_problems_come_first(empty: SQLitePool) -> None:
    empty.put(TrajectoryInfo(id="t", created_at=NOW - 60), Annotation.end("t", "failed", "503"))
    empty.put(TrajectoryInfo(id="u", created_at=NOW - 60), Annotation.end("u", "terminated"))
    assert [problem.urgent for problem in told(empty).problems] == [True, False]


def test_each_step_is_counted_once_however_often_drift_is_read(empty: SQLitePool) -> None:
    log, last = DriftLog(), None
    empty.put(TrajectoryInfo(id="t", agent="coder"))
    for index in range(4):
        made = step("t", index=index, dialect="chat", model="tiny", fork="root" if last is None else "")
        empty.put(made)
        last = made
        (line,) = log.read(empty)
        assert (line.steps, line.extended) == (index + 1, index)
        assert log.read(empty) == [line]
    assert DriftLog().read(empty) == [line]
