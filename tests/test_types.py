import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import InvalidRecord
from stepwell.types import (
    Annotation,
    Credit,
    GroupInfo,
    Sample,
    Sampling,
    Step,
    Trajectory,
    TrajectoryInfo,
    UpdateInfo,
    new_id,
)
from tests.strategies import names, steps

NOT_FINITE = [math.nan, math.inf, -math.inf]


def make_step(**fields) -> Step:
    defaults = {"id": "s", "trajectory_id": "t", "index": 0, "created_at": 1.0}
    arrays = {"prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-0.5]}
    return Step(**{**defaults, **arrays, **fields})


def make_sample(**fields) -> Sample:
    defaults = {"step_id": "s", "trajectory_id": "t", "token_ids": [1, 2, 3], "prompt_length": 2}
    return Sample(**{**defaults, "logprobs": [-0.5], "advantages": [1.0], **fields})


def test_new_ids_are_unique_and_carry_their_prefix() -> None:
    ids = [new_id("step") for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(made.startswith("step-") for made in ids)


def test_arrays_become_read_only_arrays_of_one_dtype() -> None:
    step = make_step()
    assert [array.dtype for array in (step.prompt_ids, step.response_ids, step.logprobs)] == [
        "int32",
        "int32",
        "float32",
    ]
    for array in (step.prompt_ids, step.response_ids, step.logprobs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_step_does_not_share_memory_with_what_it_was_made_of() -> None:
    ids, logprobs = np.array([1, 2], np.int32), np.array([-0.5, -0.25], np.float32)
    step = make_step(prompt_ids=ids, response_ids=ids, logprobs=logprobs)
    ids[0], logprobs[0] = 99, 0.0
    assert step == make_step(prompt_ids=[1, 2], response_ids=[1, 2], logprobs=[-0.5, -0.25])
    assert ids.flags.writeable


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_every_int32_token_id_is_kept(ids: list[int]) -> None:
    step = make_step(prompt_ids=ids, response_ids=ids, logprobs=[0.0] * len(ids))
    assert step.prompt_ids.tolist() == step.response_ids.tolist() == ids


@pytest.mark.parametrize("wrong", [-1, 2**31, -(2**40), 2**40])
def test_a_token_id_outside_int32_is_refused(wrong: int) -> None:
    with pytest.raises(InvalidRecord, match="outside"):
        make_step(prompt_ids=[1, wrong])


@pytest.mark.parametrize("wrong", [[1.5], [[1, 2]], ["1"], [True]], ids=str)
def test_token_ids_that_are_no_flat_list_of_integers_are_refused(wrong: list) -> None:
    with pytest.raises(InvalidRecord, match="flat list of integers"):
        make_step(prompt_ids=wrong)


@pytest.mark.parametrize("logprobs", [[], [-0.5, -0.5]])
def test_each_response_token_needs_exactly_one_logprob(logprobs: list[float]) -> None:
    with pytest.raises(InvalidRecord, match="exactly one log-probability"):
        make_step(logprobs=logprobs)


@pytest.mark.parametrize("wrong", NOT_FINITE)
def test_a_logprob_that_is_not_finite_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidRecord, match="NaN or infinity"):
        make_step(logprobs=[wrong])


@pytest.mark.parametrize("wrong", [["a"], [None], [[0.0]]], ids=str)
def test_logprobs_that_are_no_flat_list_of_numbers_are_refused(wrong: list) -> None:
    with pytest.raises(InvalidRecord):
        make_step(logprobs=wrong)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"prompt_ids": []}, "prompt_ids is empty"),
        ({"index": -1}, "index"),
        ({"policy_version_min": 2, "policy_version_max": 1}, "policy_version_min"),
        ({"policy_version_min": -1}, "policy_version_min"),
        ({"finish_reason": "bored"}, "finish_reason"),
        ({"token_source": "guess"}, "token_source"),
        ({"id": ""}, r"Step\.id"),
        ({"id": "a/b"}, r"Step\.id"),
        ({"trajectory_id": "a\nb"}, r"Step\.trajectory_id"),
        ({"trajectory_id": "a" * 257}, r"Step\.trajectory_id"),
    ],
)
def test_a_step_that_breaks_an_invariant_is_refused_by_name(fields: dict, complaint: str) -> None:
    with pytest.raises(InvalidRecord, match=complaint):
        make_step(**fields)


@pytest.mark.parametrize(
    ("fields", "trainable"),
    [
        ({}, True),
        ({"finish_reason": "length"}, True),
        ({"finish_reason": "abort"}, False),
        ({"token_source": "text"}, False),
        ({"response_ids": [], "logprobs": []}, False),
    ],
    ids=str,
)
def test_a_step_is_trainable_if_its_sampled_tokens_are_known(fields: dict, trainable: bool) -> None:
    assert make_step(**fields).trainable is trainable


@given(st.data(), names)
def test_steps_are_equal_exactly_when_all_fields_are(data: st.DataObject, name: str) -> None:
    step = data.draw(steps(name, 0))
    same = dataclasses.replace(step)
    assert step == same
    assert step != dataclasses.replace(step, model=step.model + "x")
    assert step != dataclasses.replace(step, prompt_ids=[*step.prompt_ids, 5])
    assert step != dataclasses.replace(step, sampling=dataclasses.replace(step.sampling, seed=-1))


def test_records_of_different_types_are_never_equal() -> None:
    assert make_step() != GroupInfo(id="s", task_id="t", size=1)
    assert make_step() != "s"


def test_a_step_has_no_hash() -> None:
    with pytest.raises(TypeError):
        hash(make_step())


def test_records_cannot_be_changed() -> None:
    for record, name in ((make_step(), "index"), (TrajectoryInfo(), "agent"), (Sampling(), "top_k")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"top_k": -1},
        {"max_tokens": 0},
    ],
    ids=str,
)
def test_impossible_sampling_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidRecord, match=next(iter(fields))):
        Sampling(**fields)


def test_logits_are_divided_by_the_temperature_or_by_one_when_greedy() -> None:
    assert [Sampling(temperature=temperature).scale for temperature in (0.0, 0.5, 2.0)] == [1.0, 0.5, 2.0]


@pytest.mark.parametrize("wrong", [*NOT_FINITE, None])
def test_a_reward_that_is_not_a_finite_number_is_refused(wrong: float | None) -> None:
    with pytest.raises(InvalidRecord, match="finite"):
        Annotation(target="step", target_id="s", kind="reward", value=wrong)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "end", "name": "reward"},
        {"kind": "end", "name": "terminated", "target": "step"},
        {"kind": "label"},
        {"kind": "reward", "value": 1.0, "target": "group"},
        {"kind": "reward", "value": 1.0, "name": ""},
        {"kind": "reward", "value": 1.0, "target_id": "a/b"},
    ],
    ids=str,
)
def test_an_impossible_annotation_is_refused(fields: dict) -> None:
    with pytest.raises(InvalidRecord):
        Annotation(**{"target": "trajectory", "target_id": "t", **fields})


def test_the_short_forms_make_the_annotations_that_they_name() -> None:
    reward, end = Annotation.reward("step", "s", 1, "format"), Annotation.end("t", "failed", "the tool broke")
    assert (reward.target, reward.target_id, reward.kind, reward.name, reward.value) == (
        "step",
        "s",
        "reward",
        "format",
        1,
    )
    assert (end.target, end.target_id, end.kind, end.name, end.text) == (
        "trajectory",
        "t",
        "end",
        "failed",
        "the tool broke",
    )


def test_groups_trajectories_and_updates_check_their_names_and_sizes() -> None:
    for make in (
        lambda: GroupInfo(task_id="t", size=0),
        lambda: GroupInfo(id="a/b", task_id="t", size=1),
        lambda: TrajectoryInfo(id=""),
        lambda: TrajectoryInfo(group_id=""),
        lambda: UpdateInfo(run="", policy_version=1),
    ):
        with pytest.raises(InvalidRecord):
            make()


@pytest.mark.parametrize("status", ["open", "terminated", "truncated", "failed"])
@pytest.mark.parametrize("reward", [None, 0.0])
def test_a_trajectory_is_complete_when_it_ended_unfailed_with_a_known_reward(status, reward: float | None) -> None:
    trajectory = Trajectory(info=TrajectoryInfo(), steps=(), status=status, reward=reward)
    assert trajectory.complete == (status in ("terminated", "truncated") and reward is not None)


def test_a_trajectory_needs_one_reward_per_step() -> None:
    with pytest.raises(InvalidRecord, match="0 step_rewards for 1 steps"):
        Trajectory(info=TrajectoryInfo(id="t"), steps=(make_step(),))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_credit_takes_no_value_target_or_one_or_one_per_token(count: int) -> None:
    credit = Credit(step_id="s", advantages=[1.0, 2.0, 3.0], value_targets=[0.5] * count)
    assert credit.value_targets.shape == (count,)
    assert credit == Credit(step_id="s", advantages=np.array([1, 2, 3]), value_targets=[0.5] * count)


def test_credit_with_another_number_of_value_targets_or_nan_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="value_targets has 2 values for 3 tokens"):
        Credit(step_id="s", advantages=[1.0, 2.0, 3.0], value_targets=[0.5, 0.5])
    with pytest.raises(InvalidRecord, match="NaN"):
        Credit(step_id="s", advantages=[math.nan])


@pytest.mark.parametrize(
    "fields",
    [{"prompt_length": 0}, {"prompt_length": 3}, {"logprobs": []}, {"advantages": [1.0, 1.0]}, {"prompt_length": 5}],
    ids=str,
)
def test_a_sample_whose_lengths_do_not_fit_is_refused(fields: dict) -> None:
    with pytest.raises(InvalidRecord, match="needs"):
        make_sample(**fields)


def test_samples_are_equal_by_value() -> None:
    assert make_sample() == make_sample(token_ids=np.array([1, 2, 3]))
    assert make_sample() != make_sample(advantages=[2.0])


@pytest.mark.parametrize("created_at", [-1.0, 1e300, float("nan"), float("inf")])
def test_a_time_that_no_calendar_can_show_is_refused(created_at: float) -> None:
    with pytest.raises(InvalidRecord, match="created_at"):
        TrajectoryInfo(created_at=created_at)


@pytest.mark.parametrize("value", [1.7e308, -1e31])
def test_a_reward_whose_sums_could_overflow_is_refused(value: float) -> None:
    with pytest.raises(InvalidRecord, match="at most 1e\\+30"):
        Annotation.reward("trajectory", "t", value)
