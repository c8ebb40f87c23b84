"""GiGPO: steps compared within the same state."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.gigpo import GiGPO, anchored_advantages, observation
from stepwell.errors import InvalidRecord
from stepwell.types import Trajectory
from tests.algorithms.builders import assign, make_group, make_step, make_trajectory, with_step

cases = st.lists(st.tuples(st.integers(-40, 40).map(lambda n: n / 4), st.sampled_from("xyz")), max_size=12)
"""(return, state) of each step."""


def in_states(name: str, states: str, step_rewards: list[float]) -> Trajectory:
    """A trajectory whose steps are taken in the states, each with one token."""
    trajectory = make_trajectory(name, [1] * len(states), step_rewards)
    for place, state in enumerate(states):
        trajectory = with_step(trajectory, place, prompt_ids=[ord(state)])
    return trajectory


@given(cases, st.sampled_from(["std", "none"]))
def test_advantages_sum_to_0_in_each_state(steps, scale) -> None:
    advantages = anchored_advantages([r for r, _ in steps], [s for _, s in steps], scale=scale)
    for state in "xyz":
        assert sum(a for a, (_, s) in zip(advantages, steps, strict=True) if s == state) == pytest.approx(0, abs=1e-9)


@given(cases, st.floats(-100, 100))
def test_what_is_earned_in_one_state_changes_nothing_in_another(steps, shift) -> None:
    states = [s for _, s in steps]
    before = anchored_advantages([r for r, _ in steps], states)
    after = anchored_advantages([r + shift * (s == "x") for r, s in steps], states)
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_by_hand_with_two_trajectories_that_meet_again() -> None:
    # both begin in x; the first passes y twice, the second once
    group = make_group(in_states("a", "xyy", [0.0, 0.0, 4.0]), in_states("b", "xy", [0.0, 0.0]))
    credit = assign(GiGPO(gamma=0.5, scale="none", omega=2.0).build(), group)
    episode = 2.0
    assert credit["a-0"].advantages.tolist() == [episode + 2 * 0.5]  # in x: returns 1 and 0
    assert credit["b-0"].advantages.tolist() == [-episode - 2 * 0.5]
    assert credit["a-1"].advantages.tolist() == [episode + 2 * 0.0]  # in y: returns 2, 4 and 0
    assert credit["a-2"].advantages.tolist() == [episode + 2 * 2.0]
    assert credit["b-1"].advantages.tolist() == [-episode - 2 * 2.0]


def test_a_trajectory_alone_still_compares_its_own_visits_of_a_state() -> None:
    credit = assign(GiGPO(gamma=1.0, scale="none").build(), make_group(in_states("a", "xx", [2.0, 1.0])))
    assert [credit[f"a-{i}"].advantages.tolist() for i in range(2)] == [[1.0], [-1.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_return_that_is_not_finite_is_refused_even_where_it_is_alone(bad) -> None:
    with pytest.raises(InvalidRecord, match="NaN or infinite"):
        anchored_advantages([0.0, bad], ["x", "y"])


ASKED = {"role": "user", "content": "open the door"}
CALLED = {"role": "assistant", "tool_calls": [{"id": "call_1", "function": {"name": "look", "arguments": "{}"}}]}


def said(body: dict) -> str:
    return observation(make_step("t", 0, request=json.dumps(body)))


def test_an_observation_is_what_came_after_the_last_answer_whatever_went_before_and_whatever_calls_are_named() -> None:
    seen = {"role": "tool", "content": "a key", "tool_call_id": "call_1"}
    once = said({"messages": [ASKED, CALLED, seen]})
    later = said({"messages": [ASKED, CALLED, ASKED, CALLED, {**seen, "tool_call_id": "call_9"}]})
    assert once == later != said({"messages": [ASKED, CALLED, {**seen, "content": "a lamp"}]})
    assert said({"messages": [ASKED, CALLED, seen, seen]}) != once
    assert said({"messages": [ASKED]}) != once


def test_each_dialect_has_its_observations() -> None:
    result = {"type": "function_call_output", "call_id": "c1", "output": "a key"}
    calling = {"type": "function_call", "id": "f1", "call_id": "c1", "name": "look", "arguments": "{}"}
    assert said({"input": [ASKED, calling, result]}) == said({"input": [{**result, "call_id": "c2"}]})
    assert said({"input": "open"}) == said({"prompt": "open"}) != said({"prompt": "close"})
    block = {"type": "tool_result", "tool_use_id": "u1", "content": "a key"}
    blocks = [{"role": "user", "content": [{**block, "tool_use_id": name}]} for name in ("u1", "u2")]
    assert said({"messages": [CALLED, blocks[0]]}) == said({"messages": [CALLED, blocks[1]]})


def test_the_anchor_decides_which_states_are_the_same() -> None:
    seen = {"role": "tool", "content": "a key"}
    requests = [json.dumps({"messages": past}) for past in ([CALLED, seen], [ASKED, CALLED, seen])]
    group = make_group(
        *(
            with_step(in_states(name, state, [reward]), 0, request=request)
            for name, state, reward, request in zip("ab", "xy", (1.0, 0.0), requests, strict=True)
        )
    )
    plain, shared = (assign(GiGPO(scale="none", anchor=a).build(), group) for a in ("prompt", "observation"))
    assert [plain[i].advantages.tolist() for i in ("a-0", "b-0")] == [[0.5], [-0.5]]
    assert [shared[i].advantages.tolist() for i in ("a-0", "b-0")] == [[1.0], [-1.0]]


@pytest.mark.parametrize("request_text", ["", "{", "[]", "{}", "3", '{"model": "m"}'])
def test_without_messages_there_is_no_observation(request_text: str) -> None:
    with pytest.raises(InvalidRecord, match="use anchor: prompt"):
        observation(make_step("t", 0, request=request_text))
