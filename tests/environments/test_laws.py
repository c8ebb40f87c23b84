"""Every environment obeys the protocol's laws."""

import asyncio
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import ForkRefused, NotFound
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Closing, Outcome, TaskSet, Unforkable
from stepwell.rollout.episode import Boundary, Episode, called
from tests.environments.laws import CASES, Case, Script, opened, play


@pytest.fixture(params=CASES, ids=lambda case: case.name, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="module")
def task_set(case: Case, tmp_path_factory: pytest.TempPathFactory) -> TaskSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWELL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return case.make(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def task_id(task_set: TaskSet) -> str:
    return task_set.tasks("train")[0]


_SCRIPTS = max(len(case.scripts) for case in CASES)


@pytest.fixture(params=range(_SCRIPTS), ids=lambda index: f"script{index}")
def script(request: pytest.FixtureRequest, case: Case) -> Script:
    return case.scripts[request.param % len(case.scripts)]


def test_the_splits_are_disjoint_and_keep_their_order(task_set: TaskSet) -> None:
    train, test = task_set.tasks("train"), task_set.tasks("test")
    assert train
    assert test
    assert len({*train, *test}) == len(train) + len(test)
    assert list(task_set.tasks("train")) == list(train)


def test_the_same_task_and_seed_open_with_the_same_messages_and_end_with_the_users_turn(
    task_set: TaskSet, task_id: str
) -> None:
    opening = opened(task_set, task_id, seed=5)
    assert opening[-1].role == "user"
    assert opened(task_set, task_id, seed=5) == opening


async def test_an_instance_can_be_used_again_for_the_same_task(task_set: TaskSet, task_id: str) -> None:
    environment = task_set.make()
    first = await called(environment.reset, task_id, seed=5)
    assert await called(environment.reset, task_id, seed=5) == first
    if isinstance(environment, Closing):
        await called(environment.close)


def test_the_same_actions_give_the_same_outcomes(task_set: TaskSet, task_id: str, script: Script) -> None:
    outcomes = play(task_set, task_id, script, seed=5)
    assert play(task_set, task_id, script, seed=5) == outcomes


async def test_two_instances_never_influence_each_other(task_set: TaskSet, script: Script) -> None:
    first, second = task_set.tasks("train")[:2]
    left, right = await Episode.begin(task_set, first), await Episode.begin(task_set, second)
    together = [(await left.step(action), await right.step(action)) for action in script]
    await left.close()
    await right.close()
    alone = [await asyncio.to_thread(play, task_set, task, script) for task in (first, second)]
    assert [[one for one, _ in together], [other for _, other in together]] == alone


def test_exactly_the_last_outcome_ends_the_episode(task_set: TaskSet, task_id: str, script: Script) -> None:
    *before, last = play(task_set, task_id, script)
    assert not any(outcome.terminated or outcome.truncated for outcome in before)
    assert last.terminated != last.truncated
    assert last.messages == ()


async def boundaries(task_set: TaskSet, task_id: str, script: Script) -> tuple[list[Boundary], list[Outcome]]:
    """The state before each action of the script, and what all of them brought."""
    episode, states, outcomes = await Episode.begin(task_set, task_id, seed=5), [], []
    for action in script:
        states.append(await episode.boundary())
        outcomes.append(await episode.step(action))
    await episode.close()
    return states, outcomes


async def go_on(task_set: TaskSet, boundary: Boundary, script: Script) -> list[Outcome]:
    episode = await Episode.fork(task_set, boundary)
    assert episode.turns == len(boundary.past)
    outcomes = [await episode.step(action) for action in script[episode.turns :]]
    await episode.close()
    return outcomes


def forkable(task_set: TaskSet) -> bool:
    return not isinstance(task_set.make(), Unforkable)


async def test_a_fork_goes_on_as_the_original_did_however_often(
    task_set: TaskSet, task_id: str, script: Script
) -> None:
    if not forkable(task_set):
        pytest.skip("this environment says why it cannot be forked")
    states, outcomes = await boundaries(task_set, task_id, script)
    for state in (*states, *states):
        assert await go_on(task_set, state, script) == outcomes[len(state.past) :]


async def test_playing_the_actions_again_leads_to_the_same_state_as_a_snapshot(
    task_set: TaskSet, task_id: str, script: Script
) -> None:
    if not forkable(task_set):
        pytest.skip("this environment says why it cannot be forked")
    states, outcomes = await boundaries(task_set, task_id, script)
    for state in states:
        assert await go_on(task_set, replace(state, snapshot=None), script) == outcomes[len(state.past) :]


async def test_neither_the_original_nor_another_fork_sees_what_a_fork_does(
    task_set: TaskSet, task_id: str, case: Case
) -> None:
    if not forkable(task_set):
        pytest.skip("this environment says why it cannot be forked")
    script = max(case.scripts, key=len)
    expected = await asyncio.to_thread(play, task_set, task_id, script, 5)
    original = await Episode.begin(task_set, task_id, seed=5)
    outcomes = []
    for turn, action in enumerate(script):
        state = await original.boundary()
        for other in case.scripts:  # astray, each from this very state
            fork = await Episode.fork(task_set, state)
            for step in other[min(turn, len(other) - 1) :]:
                outcome = await fork.step(step)
                if outcome.terminated or outcome.truncated:
                    break
            await fork.close()
        outcomes.append(await original.step(action))
    await original.close()
    assert outcomes == expected


async def test_an_environment_that_cannot_be_forked_says_why(task_set: TaskSet, task_id: str) -> None:
    if forkable(task_set):
        pytest.skip("this environment can be forked")
    episode = await Episode.begin(task_set, task_id)
    with pytest.raises(ForkRefused, match=r"cannot be forked: \w+"):
        await episode.boundary()
    await episode.close()


def test_reward_parts_are_finite_and_named_once(task_set: TaskSet, task_id: str, script: Script) -> None:
    for outcome in play(task_set, task_id, script):
        names = [name for name, _ in outcome.reward_parts]
        assert len(set(names)) == len(names)
        assert all(math.isfinite(value) for _, value in outcome.reward_parts)


async def test_the_tools_have_object_schemas_and_stay_the_same(task_set: TaskSet, task_id: str, script: Script) -> None:
    episode = await Episode.begin(task_set, task_id)
    offered = episode.tools
    assert len({tool.name for tool in offered}) == len(offered)
    assert all(tool.parameters["type"] == "object" for tool in offered)
    for action in script:
        await episode.step(action)
    assert episode.tools == offered
    await episode.close()


def test_an_unknown_task_is_not_found(task_set: TaskSet) -> None:
    with pytest.raises(NotFound):
        opened(task_set, "no such task")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3)
)


def _calls(tools: tuple[Tool, ...]) -> st.SearchStrategy[ToolCall]:
    """Calls of the tools that are offered and of others, with arguments of right and wrong names, types, syntax."""
    names = [tool.name for tool in tools]
    parameters = [name for tool in tools for name in tool.parameters.get("properties", {})]
    keys = st.sampled_from([*parameters, "other"])
    arguments = st.dictionaries(keys, _JSON, max_size=3).map(json.dumps) | _JSON.map(json.dumps)
    broken = st.text(max_size=20) | st.just("[" * 20_000)
    name = st.sampled_from([*names, "", "no_tool"]) | st.text(max_size=8)
    return st.builds(ToolCall, id=st.uuids().map(str), name=name, arguments=arguments | broken)


@given(content=st.text(max_size=30), data=st.data())
@settings(max_examples=50)
def test_nothing_that_a_policy_says_breaks_the_environment(
    task_set: TaskSet, task_id: str, content: str, data: st.DataObject
) -> None:
    calls = data.draw(st.lists(_calls(task_set.make().tools), max_size=3))
    (outcome,) = play(task_set, task_id, [Message(role="assistant", content=content, tool_calls=tuple(calls))])
    answered = {message.tool_call_id for message in outcome.messages if message.role == "tool"}
    assert answered <= {made.id for made in calls}
    assert 0 <= outcome.invalid_calls <= len(calls)
