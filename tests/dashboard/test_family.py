"""A trajectory's place among others: the branches of its steps, its group, and what was forked from it."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stepwell.dashboard.reading.family import Branch, branches, read_family
from stepwell.pool.outline import StepOutline
from stepwell.pool.store import SQLitePool
from stepwell.types import GroupInfo, TrajectoryInfo


def step(index: int, parent: int | None = None, fork: str = "", side: str = "") -> StepOutline:
    return StepOutline(
        id=f"s{index}",
        index=index,
        parent_id="" if parent is None else f"s{parent}",
        fork=fork,
        side=side,
        finish_reason="stop",
        policy_version_min=0,
        policy_version_max=0,
        prompt_tokens=1,
        response_tokens=1,
        created_at=float(index),
        latency=0.0,
    )


def test_steps_that_go_on_from_each_other_are_one_branch() -> None:
    assert branches([step(0, fork="root"), step(1, 0), step(2, 1)]) == [Branch(0, 2, 3, None, "root", 0)]
    assert branches([step(0), step(1), step(2)]) == [Branch(0, 2, 3, None, "", 0)]


def test_a_branch_parts_from_the_step_that_it_goes_on_from() -> None:
    taken = [step(0, fork="root"), step(1, 0), step(2, 1), step(3, 0, "client"), step(4, 2), step(5, 3), step(6, 0)]
    assert branches(taken) == [
        Branch(0, 4, 4, None, "root", 0),
        Branch(3, 5, 2, 0, "client", 1),
        Branch(6, 6, 1, 0, "", 1),
    ]


def test_calls_beside_the_work_do_not_interrupt_it() -> None:
    assert branches([step(0), step(1, side="title"), step(2)]) == [
        Branch(0, 2, 2, None, "", 0),
        Branch(1, 1, 1, 0, "side", 1),
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9) | st.none(),
            st.sampled_from(["", "root", "client", "template"]),
            st.sampled_from(["", "title"]),
        ),
        max_size=10,
    )
)
def test_every_step_is_in_one_branch(drawn: list[tuple[int | None, str, str]]) -> None:
    steps = [step(index, parent, fork, side) for index, (parent, fork, side) in enumerate(drawn)]
    found = branches(steps)
    assert sum(branch.steps for branch in found) == len(steps)
    assert [branch.first for branch in found] == sorted({branch.first for branch in found})
    assert all(branch.parent is None or branch.parent < branch.first for branch in found)


def test_relatives_are_the_group_and_the_sets_that_were_forked_from_it(tmp_path: Path) -> None:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    pool.put(GroupInfo(id="g", task_id="", size=2), *(TrajectoryInfo(id=name, group_id="g") for name in "ab"))
    for index in (4, 1):
        pool.put(GroupInfo(id=f"at-{index}", task_id="", size=1, origin_id="a", origin_index=index))
    pool.put(TrajectoryInfo(id="sibling", group_id="at-1"), TrajectoryInfo(id="lone"))
    family = read_family(pool, pool.trajectory("a").info)
    assert [member.info.id for member in family.members] == ["a", "b"]
    assert [found.info.origin_index for found in family.forked] == [1, 4]
    of_sibling = read_family(pool, pool.trajectory("sibling").info).group
    assert of_sibling is not None
    assert (of_sibling.origin_id, of_sibling.origin_index) == ("a", 1)
    lone = read_family(pool, pool.trajectory("lone").info)
    assert (lone.group, lone.members, lone.forked) == (None, (), ())
    pool.close()
