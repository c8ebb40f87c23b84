import struct
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.errors import PoolError
from stepwell.pool import schema
from stepwell.pool.codec import StepPacker, draft
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Step, TrajectoryInfo, UpdateInfo
from tests.pool.builders import make_step
from tests.strategies import conversations, group_infos, reward_annotations, trajectory_infos, updates

on_disk = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def bits(values) -> list[bytes]:
    return [struct.pack("<f", value) for value in values]


def reopened(path: Path, *records) -> SQLitePool:
    path.unlink(missing_ok=True)
    pool = SQLitePool.open(path)
    pool.put(*records)
    pool.close()
    return SQLitePool.open(path, read_only=True)


@on_disk
@given(conversations("t"))
def test_steps_come_back_bit_for_bit_whether_read_alone_or_together(tmp_path: Path, taken: list[Step]) -> None:
    pool = reopened(tmp_path / "pool.sqlite", TrajectoryInfo(id="t"), *taken)
    assert pool.trajectory("t").steps == tuple(taken)
    for step in taken:
        found = pool.step(step.id)
        assert found == step
        assert bits(found.logprobs) == bits(step.logprobs)
    pool.close()


@on_disk
@given(group_infos, st.data(), updates)
def test_all_other_records_come_back_equal(
    tmp_path: Path, info: GroupInfo, data: st.DataObject, update: UpdateInfo
) -> None:
    member = data.draw(trajectory_infos(info.id))
    note: Annotation = data.draw(reward_annotations("trajectory", member.id))
    pool = reopened(tmp_path / "pool.sqlite", info, member, note, update)
    group = pool.group(info.id)
    assert group.info == info
    assert group.trajectories[0].info == member
    assert group.trajectories[0].reward_parts == ((note.name, note.value),)
    assert pool.updates() == [update]
    pool.close()


@given(conversations("t", most=1))
def test_a_step_and_its_equal_have_one_digest(taken: list[Step]) -> None:
    for step in taken:
        assert (
            draft(step).row["digest"]
            == draft(Step(**{name: getattr(step, name) for name in step.__slots__})).row["digest"]
        )


def test_a_prompt_that_extends_the_step_before_is_stored_as_its_new_tokens() -> None:
    packer = StepPacker()
    packer.pack(make_step("t", 0, prompt=range(1, 100), request="[1]"), trajectory=1, cursor=5)
    following = make_step("t", 1, prompt=[*range(1, 100), 7, 8, 55], request="[1, 2]")
    row = packer.pack(following, trajectory=1, cursor=6)
    assert (row["base_cursor"], row["prompt_shared"], row["request_shared"]) == (5, 101, 2)


@pytest.mark.parametrize("forgetful", ["another trajectory", "rolled back", "no room"])
def test_a_prompt_whose_base_is_not_at_hand_is_stored_whole(forgetful: str) -> None:
    packer = StepPacker(budget=0 if forgetful == "no room" else 10_000)
    packer.pack(make_step("t", 0), trajectory=1, cursor=5)
    if forgetful == "rolled back":
        packer.forget()
    row = packer.pack(make_step("t", 1), trajectory=2 if forgetful == "another trajectory" else 1, cursor=6)
    assert (row["base_cursor"], row["prompt_shared"]) == (None, 0)


def test_damaged_bytes_are_a_pool_error_that_names_the_step(tmp_path: Path) -> None:
    path, step = tmp_path / "pool.sqlite", make_step("t")
    reopened(path, TrajectoryInfo(id="t"), step).close()
    with sa.create_engine(f"sqlite:///{path}").begin() as connection:
        connection.execute(sa.update(schema.steps).values(logprobs=b"nonsense"))
    pool = SQLitePool.open(path)
    with pytest.raises(PoolError, match=step.id):
        pool.step(step.id)
    pool.close()
