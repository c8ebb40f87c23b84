import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.errors import PoolError
from stepwell.pool import schema
from stepwell.pool.rows import draft
from stepwell.pool.store import SQLitePool
from stepwell.pool.tokens import LONGEST_CHAIN, PACKED, StepPacker
from stepwell.types import Annotation, GroupInfo, Sampling, Step, TrajectoryInfo, UpdateInfo
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
        again = Step(**{name: getattr(step, name) for name in step.__slots__})
        assert draft(step).digest == draft(again).digest


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_ids": [1, 2, 3]},
        {"prompt_ids": [1], "response_ids": [2, 7, 8], "logprobs": [-0.5, -0.5, -0.25]},
        {"logprobs": [-0.5, -0.125]},
        {"request": "b", "response": "a"},
        {"request": "ab", "response": ""},
        {"model": "other"},
        {"trajectory_id": "u"},
        {"sampling": Sampling(seed=5)},
    ],
    ids=str,
)
def test_a_step_with_other_content_has_another_digest(change: dict) -> None:
    step = make_step("t", request="a", response="b")
    assert draft(replace(step, **change)).digest != draft(step).digest


@given(conversations("t"), st.data())
def test_a_digest_is_the_same_whatever_was_hashed_before(taken: list[Step], data: st.DataObject) -> None:
    packer = StepPacker(budget=data.draw(st.sampled_from([0, 3_000, 10**6])))
    for cursor, step in enumerate(data.draw(st.permutations([*taken, *taken])), 2):
        drafted = draft(step, packer)
        assert drafted.digest == draft(step).digest
        if data.draw(st.booleans()):
            packer.pack(drafted.payload, trajectory=1, cursor=cursor, number=step.index)


def test_arrays_that_are_views_with_gaps_are_stored_as_what_they_show(tmp_path: Path) -> None:
    ids = np.frombuffer(np.arange(12, dtype=np.int32).tobytes(), np.int32)
    logprobs = -np.frombuffer(np.arange(8, dtype=np.float32).tobytes(), np.float32)[::2]
    step = Step(trajectory_id="t", index=0, prompt_ids=ids[::3], response_ids=ids[1:8:2], logprobs=logprobs)
    pool = reopened(tmp_path / "pool.sqlite", TrajectoryInfo(id="t"), step)
    assert pool.step(step.id) == step
    pool.close()


def test_times_are_no_content() -> None:
    step = make_step("t")
    assert draft(replace(step, created_at=5.0, latency=7.0)).digest == draft(step).digest


def packed(packer: StepPacker, step: Step, trajectory: int, cursor: int) -> dict[str, object]:
    values = packer.pack(packer.payload(step), trajectory=trajectory, cursor=cursor, number=step.index)
    return dict(zip(PACKED, values, strict=True))


def test_a_prompt_that_extends_the_step_before_is_stored_as_its_new_tokens() -> None:
    packer = StepPacker()
    packed(packer, make_step("t", 0, prompt=range(1, 100), request="[1]"), 1, 5)
    following = make_step("t", 1, prompt=[*range(1, 100), 7, 8, 55], request="[1, 2]")
    row = packed(packer, following, 1, 6)
    assert (row["base_cursor"], row["prompt_shared"], row["request_shared"]) == (5, 101, 2)


def test_a_retry_in_between_changes_nothing_about_how_the_next_step_is_stored() -> None:
    steps = [make_step("t", index, prompt=range(1, 100 + 3 * index)) for index in range(3)]
    packer, undisturbed = StepPacker(), StepPacker()
    for cursor, step in enumerate(steps, 5):
        assert packed(packer, step, 1, cursor) == packed(undisturbed, step, 1, cursor)
        for again in steps:
            packer.payload(again)


@given(st.lists(st.integers(0, 300), min_size=1), st.lists(st.integers(0, 300), min_size=1))
def test_what_two_prompts_share_is_counted_in_whole_tokens(first: list[int], second: list[int]) -> None:
    packer = StepPacker()
    packed(packer, make_step("t", 0, prompt=first), 1, 5)
    shared = 0
    for left, right in zip([*first, 7, 8], second, strict=False):
        if left != right:
            break
        shared += 1
    assert packed(packer, make_step("t", 1, prompt=second), 1, 6)["prompt_shared"] == shared


@pytest.mark.parametrize(
    "forgetful", ["another trajectory", "its old id", "rolled back", "no room", "another process", "long chain"]
)
def test_a_prompt_whose_base_is_not_at_hand_is_stored_whole(forgetful: str) -> None:
    packer = StepPacker(budget=0 if forgetful == "no room" else 10_000)
    before = LONGEST_CHAIN if forgetful == "long chain" else 1
    for index in range(before):
        packed(packer, make_step("t", index), 1, 5 + index)
    if forgetful == "rolled back":
        packer.forget()
    step = make_step(
        "u" if forgetful == "another trajectory" else "t", before + 1 if forgetful == "another process" else before
    )
    row = packed(packer, step, 2 if forgetful in ("another trajectory", "its old id") else 1, 100)
    assert (row["base_cursor"], row["prompt_shared"]) == (None, 0)


def test_damaged_bytes_are_a_pool_error_that_names_the_step(tmp_path: Path) -> None:
    path, step = tmp_path / "pool.sqlite", make_step("t")
    reopened(path, TrajectoryInfo(id="t"), step).close()
    with sa.create_engine(f"sqlite:///{path}").begin() as connection:
        connection.execute(sa.update(schema.steps).values(tokens=b"nonsense"))
    pool = SQLitePool.open(path)
    with pytest.raises(PoolError, match=step.id):
        pool.step(step.id)
    pool.close()
