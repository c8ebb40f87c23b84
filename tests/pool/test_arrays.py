"""Laws of the arrays that consumers get: what they say of the groups, and that both wire forms bring them back."""

import dataclasses
import struct
from collections.abc import Callable

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import InvalidRecord
from stepwell.pool.arrays import ARRAYS, IDS, StepArrays, from_msgpack, step_arrays, to_msgpack
from stepwell.pool.arrow import from_arrow, to_arrow
from stepwell.types import Group, Step, Trajectory, TrajectoryInfo
from tests import strategies
from tests.pool.archive.builders import group_of, searching

WIRES = {"msgpack": (to_msgpack, from_msgpack), "arrow": (to_arrow, from_arrow)}


@st.composite
def _trajectories(draw: st.DrawFn) -> Trajectory:
    info = draw(strategies.trajectory_infos())
    steps = tuple(draw(strategies.conversations(info.id, most=3)))
    rewards = tuple(draw(strategies.rewards) for _ in steps)
    status = draw(st.sampled_from(["open", "terminated", "truncated", "failed"]))
    return Trajectory(
        info=info, steps=steps, step_rewards=rewards, reward=draw(st.none() | strategies.rewards), status=status
    )


@st.composite
def _groups(draw: st.DrawFn) -> list[Group]:
    infos = draw(st.lists(strategies.group_infos, max_size=3))
    return [Group(info=info, trajectories=tuple(draw(st.lists(_trajectories(), max_size=2)))) for info in infos]


@pytest.mark.parametrize("wire", WIRES)
@settings(max_examples=50, deadline=None)
@given(groups=_groups())
def test_arrays_come_back_over_the_wire_bit_for_bit(wire: str, groups: list[Group]) -> None:
    encode, decode = WIRES[wire]
    arrays = step_arrays(groups)
    assert decode(encode(arrays)) == arrays


@settings(max_examples=50, deadline=None)
@given(groups=_groups())
def test_each_row_is_its_steps_tokens_and_facts(groups: list[Group]) -> None:
    arrays = step_arrays(groups)
    members = [(g, t) for g, group in enumerate(groups) for t in group.trajectories]
    steps = [step for _, trajectory in members for step in trajectory.steps]
    assert list(arrays.step_ids) == [step.id for step in steps]
    assert list(arrays.trajectory_groups) == [g for g, _ in members]
    for s, step in enumerate(steps):
        row = arrays.token_ids[arrays.row_offsets[s] : arrays.row_offsets[s + 1]]
        assert np.array_equal(row[: arrays.prompt_lengths[s]], step.prompt_ids)
        assert np.array_equal(row[arrays.prompt_lengths[s] :], step.response_ids)
        logprobs = arrays.logprobs[arrays.response_offsets[s] : arrays.response_offsets[s + 1]]
        assert logprobs.tobytes() == step.logprobs.tobytes()
        assert arrays.trajectory_ids[arrays.trajectory_index[s]] == step.trajectory_id
        assert (arrays.step_index[s], arrays.trainable[s]) == (step.index, step.trainable)


def test_ends_are_told_at_the_last_step_and_an_unknown_reward_is_not_0() -> None:
    cut = dataclasses.replace(searching("cut", reward=None, group_id="g"), status="truncated")
    arrays = step_arrays([group_of(searching("done", 0.5, "g"), cut)])
    assert arrays.terminated.tolist() == [False, True, False, False]
    assert arrays.truncated.tolist() == [False, False, False, True]
    assert arrays.rewards.tolist() == [0.0, 0.5, 0.0, 0.0]
    assert arrays.trajectory_rewards[0] == 0.5
    assert np.isnan(arrays.trajectory_rewards[1])
    assert arrays.group_index.tolist() == [0, 0, 0, 0]
    assert arrays.task_ids == ("wells",)


def test_greedy_steps_have_temperature_1_as_their_log_probabilities_do() -> None:
    whole = searching("t")
    greedy = dataclasses.replace(whole.steps[0], sampling=dataclasses.replace(whole.steps[0].sampling, temperature=0))
    arrays = step_arrays([group_of(dataclasses.replace(whole, steps=(greedy,), step_rewards=(0.0,)))])
    assert arrays.temperatures.tolist() == [1.0]


def test_every_field_has_a_dtype_and_shape_or_is_a_list_of_texts() -> None:
    assert [field.name for field in dataclasses.fields(StepArrays)] == [*ARRAYS, *IDS]


def test_the_arrays_are_read_only() -> None:
    arrays = step_arrays([group_of(searching("t"))])
    with pytest.raises(ValueError, match="read-only"):
        arrays.rewards[0] = 1


def test_a_policy_version_beyond_the_array_is_refused() -> None:
    whole = searching("t")
    late = dataclasses.replace(whole.steps[0], policy_version_max=2**63)
    with pytest.raises(InvalidRecord, match="fits no array"):
        step_arrays([group_of(dataclasses.replace(whole, steps=(late,), step_rewards=(0.0,)))])


def test_msgpack_is_read_without_stepwell() -> None:
    wire = msgspec.msgpack.decode(to_msgpack(step_arrays([group_of(searching("t"))])))
    assert wire["arrays"]["prompt_lengths"] == {"dtype": "<i4", "shape": [2], "data": struct.pack("<2i", 1, 3)}
    assert wire["ids"]["step_ids"] == ["t-0", "t-1"]


def test_arrow_is_read_without_stepwell() -> None:
    table = pa.ipc.open_stream(to_arrow(step_arrays([group_of(searching("t"))]))).read_all()
    assert table.to_pylist()[0]["prompt_lengths"] == [1, 3]
    assert [str(table.schema.field(name).type) for name in ("token_ids", "step_ids")] == [
        "large_list<item: int32>",
        "large_list<item: string>",
    ]


def _changed(**arrays: object) -> Callable[[dict], None]:
    return lambda wire: wire["arrays"].update(arrays)


def _array(dtype: str, values: list) -> dict:
    return {"dtype": dtype, "shape": [len(values)], "data": np.array(values, dtype).tobytes()}


@pytest.mark.parametrize(
    "damage",
    [
        lambda wire: wire.update(format="other"),
        lambda wire: wire.update(version=2),
        lambda wire: wire["arrays"].pop("rewards"),
        lambda wire: wire["ids"].update(more=["x"]),
        lambda wire: wire["ids"].update(task_ids=[]),
        lambda wire: wire["ids"].update(step_ids=["x"]),
        _changed(rewards=_array("<f8", [0, 0])),
        _changed(rewards={"dtype": "<f4", "shape": [3], "data": b"12345678"}),
        _changed(rewards={"dtype": "what", "shape": [2], "data": b"12345678"}),
        _changed(row_offsets=_array("<i8", [0, 9, 4])),
        _changed(row_offsets=_array("<i8", [0, -2, 6])),
        _changed(response_offsets=_array("<i8", [0, 3, 2])),
        _changed(prompt_lengths=_array("<i4", [2, 3])),
        _changed(prompt_lengths=_array("<i4", [0, 3]), row_offsets=_array("<i8", [0, 1, 5])),
        _changed(trajectory_index=_array("<i4", [0, 1])),
        _changed(trajectory_groups=_array("<i4", [-1])),
    ],
)
def test_what_does_not_fit_is_refused_before_anybody_indexes_with_it(damage: Callable[[dict], None]) -> None:
    wire = msgspec.msgpack.decode(to_msgpack(step_arrays([group_of(searching("t"))])))
    damage(wire)
    with pytest.raises(InvalidRecord):
        from_msgpack(msgspec.msgpack.encode(wire))


@pytest.mark.parametrize("decode", [from_msgpack, from_arrow])
@given(data=st.binary(max_size=40))
def test_other_bytes_are_refused(decode: Callable[[bytes], StepArrays], data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode(data)


def test_another_arrow_stream_is_refused() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [1]})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(InvalidRecord, match="holds no step arrays"):
        from_arrow(sink.getvalue().to_pybytes())


def test_nothing_at_all_is_arrays_too() -> None:
    empty = step_arrays([])
    assert empty.row_offsets.tolist() == [0]
    unstarted = Trajectory(info=TrajectoryInfo(id="t", group_id="g"), steps=())
    assert step_arrays([group_of(unstarted)]).trajectory_ids == ("t",)
    assert isinstance(searching("t").steps[0], Step)
