"""Every environment obeys the protocol's laws."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import NotFound
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import TaskSet
from tests.environments.laws import CASES, Case, Script, play


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


def test_reset_with_the_same_task_gives_the_same_messages_and_ends_with_the_users_turn(
    task_set: TaskSet, task_id: str
) -> None:
    environment = task_set.make()
    opening = environment.reset(task_id)
    assert opening[-1].role == "user"
    assert environment.reset(task_id) == opening
    assert task_set.make().reset(task_id) == opening


def test_the_same_actions_give_the_same_outcomes(task_set: TaskSet, task_id: str, script: Script) -> None:
    environment = task_set.make()
    outcomes = play(environment, task_id, script)
    assert play(environment, task_id, script) == outcomes
    assert play(task_set.make(), task_id, script) == outcomes


def test_two_instances_never_influence_each_other(task_set: TaskSet, script: Script) -> None:
    first, second = task_set.tasks("train")[:2]
    alone = play(task_set.make(), first, script), play(task_set.make(), second, script)
    left, right = task_set.make(), task_set.make()
    left.reset(first)
    right.reset(second)
    together = [(left.step(action), right.step(action)) for action in script]
    assert ([one for one, _ in together], [other for _, other in together]) == alone


def test_exactly_the_last_outcome_ends_the_episode(task_set: TaskSet, task_id: str, script: Script) -> None:
    *before, last = play(task_set.make(), task_id, script)
    assert not any(outcome.terminated or outcome.truncated for outcome in before)
    assert last.terminated != last.truncated
    assert last.messages == ()


def test_reward_parts_are_finite_and_named_once(task_set: TaskSet, task_id: str, script: Script) -> None:
    for outcome in play(task_set.make(), task_id, script):
        names = [name for name, _ in outcome.reward_parts]
        assert len(set(names)) == len(names)
        assert all(math.isfinite(value) for _, value in outcome.reward_parts)


def test_the_tools_have_object_schemas_and_stay_the_same(task_set: TaskSet, task_id: str, script: Script) -> None:
    environment = task_set.make()
    offered = environment.tools
    assert len({tool.name for tool in offered}) == len(offered)
    assert all(tool.parameters["type"] == "object" for tool in offered)
    play(environment, task_id, script)
    assert environment.tools == offered


def test_an_unknown_task_is_not_found(task_set: TaskSet) -> None:
    with pytest.raises(NotFound):
        task_set.make().reset("no such task")


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
@settings(max_examples=100)
def test_nothing_that_a_policy_says_breaks_the_environment(
    task_set: TaskSet, task_id: str, content: str, data: st.DataObject
) -> None:
    environment = task_set.make()
    environment.reset(task_id)
    calls = data.draw(st.lists(_calls(environment.tools), max_size=3))
    outcome = environment.step(Message(role="assistant", content=content, tool_calls=tuple(calls)))
    answered = {message.tool_call_id for message in outcome.messages if message.role == "tool"}
    assert answered <= {made.id for made in calls}
