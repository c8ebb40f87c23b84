from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.errors import StepwellError
from stepwell.pool.base import Receipt
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Record, TrajectoryInfo
from tests.pool.builders import make_step

NAMES = st.sampled_from(["a", "b", "c"])
ENDS = st.sampled_from(["terminated", "truncated", "failed"])


def member(name: str, group: str | None) -> TrajectoryInfo:
    return TrajectoryInfo(id=name, group_id=group, created_at=1.0)


def step(owner: str, index: int, version: int) -> Record:
    return make_step(owner, index, id=f"{owner}{index}", version=version, created_at=1.0)


def quiet(note: Annotation) -> Annotation:
    """With an id that says what it is, so that some come twice."""
    name = f"{note.kind}-{note.target_id}-{note.name}"
    return Annotation(
        id=name,
        target=note.target,
        target_id=note.target_id,
        kind=note.kind,
        name=note.name,
        value=note.value,
        created_at=1.0,
    )


records = st.one_of(
    st.builds(lambda name, size: GroupInfo(id=name, task_id="", size=size, created_at=1.0), NAMES, st.integers(1, 2)),
    st.builds(member, NAMES, st.none() | NAMES),
    st.builds(step, NAMES, st.integers(0, 2), st.integers(0, 1)),
    st.builds(lambda owner, how: quiet(Annotation.end(owner, how)), NAMES, ENDS),
    st.builds(lambda owner, value: quiet(Annotation.reward("trajectory", owner, value)), NAMES, st.integers(0, 1)),
    st.builds(lambda owner, index: quiet(Annotation.reward("step", f"{owner}{index}", 1.0)), NAMES, st.integers(0, 2)),
)


def verdict(receipt: Receipt) -> tuple[str, int | None, bool, type[StepwellError] | None]:
    return receipt.id, receipt.cursor, receipt.duplicate, type(receipt.error) if receipt.error else None


def fresh(path: Path) -> SQLitePool:
    path.unlink(missing_ok=True)
    return SQLitePool.open(path)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records, max_size=25))
def test_a_batch_is_judged_as_its_records_one_by_one(tmp_path: Path, log: list[Record]) -> None:
    together, alone = fresh(tmp_path / "together.sqlite"), fresh(tmp_path / "alone.sqlite")
    batched = together.append(log).result()
    single = [receipt for record in log for receipt in alone.append([record]).result()]
    assert [verdict(receipt) for receipt in batched] == [verdict(receipt) for receipt in single]
    assert together.stats() == alone.stats()
    assert together.trajectories() == alone.trajectories()
    assert (
        together.lease(LeaseSpec(consumer="one", limit=9)).groups
        == alone.lease(LeaseSpec(consumer="one", limit=9)).groups
    )
    together.close()
    alone.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records, max_size=25))
def test_what_is_kept_up_to_date_equals_the_fold_of_the_log(tmp_path: Path, log: list[Record]) -> None:
    pool = fresh(tmp_path / "pool.sqlite")
    pool.append(log).result()
    lines = [line for _, line in pool.trajectories()]
    for line in lines:
        whole = pool.trajectory(line.info.id)
        assert (line.status, line.reward, line.steps) == (whole.status, whole.reward, len(whole.steps))
        assert line.policy_version_min == min((step.policy_version_min for step in whole.steps), default=None)
    ready = []
    for name in {line.info.group_id for line in lines} - {None}:
        group = pool.group(name)
        if sum(found.complete for found in group.trajectories) >= group.info.size:
            ready.append(name)
    assert sorted(ready) == sorted(group.info.id for group in pool.lease(LeaseSpec(consumer="one", limit=9)).groups)
    pool.close()
