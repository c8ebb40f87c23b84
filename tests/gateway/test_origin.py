"""Forks: an agent that nobody changed is answered from the record up to where it is to act anew."""

import openai
import pytest

from stepwell.types import FORK, GroupInfo, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def play(create, turns: int, question: str = "hello") -> list[str]:
    """What a deterministic agent is told: it asks, and sends back each answer with the next question."""
    messages: list[dict[str, str]] = []
    told = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"{question} {number}"})
        answer = create(model="tiny", messages=messages, tools=[TOOL]).choices[0].message.content
        messages.append({"role": "assistant", "content": answer})
        told.append(answer)
    return told


@pytest.fixture
def forked(renderer, serve, client, pool):
    """A recorded trajectory of three steps, and one that is forked from it at a step."""
    engine = ScriptedEngine(renderer, ["a", "b", "c", "x", "y", "z"])
    url = serve(engine)
    play(client(url, path="trunk").chat.completions.create, 3)

    def fork(index: int, name: str = "fork", source: str = "gateway"):
        group = GroupInfo(task_id="t", size=2, origin_id="trunk", origin_index=index)
        pool.put(group, TrajectoryInfo(id=name, group_id=group.id, source=source))
        return client(url, path=name).chat.completions

    fork.engine = engine
    return fork


@pytest.mark.parametrize(("index", "told"), [(0, ["x", "y", "z"]), (1, ["a", "x", "y"]), (2, ["a", "b", "x"])])
def test_the_first_calls_are_answered_from_the_record_and_then_the_policy_samples(forked, pool, index, told):
    sampled = len(forked.engine.requests)
    assert play(forked(index).create, 3) == told
    assert len(forked.engine.requests) - sampled == 3 - index
    trunk, fork = pool.trajectory("trunk"), pool.trajectory("fork")
    assert [step.index for step in fork.steps] == list(range(index, 3))
    assert fork.steps[0].prompt_ids.tolist() == trunk.steps[index].prompt_ids.tolist()
    if index:
        assert (fork.steps[0].parent_id, fork.steps[0].fork) == (trunk.steps[index - 1].id, "")


def test_the_answer_says_which_step_it_is_and_whose_trajectory_it_is_in(forked, pool):
    raw = forked(2).with_raw_response.create(
        model="tiny", messages=[{"role": "user", "content": "hello 0"}], tools=[TOOL]
    )
    assert raw.headers["x-stepwell-step"] == pool.trajectory("trunk").steps[0].id
    assert raw.headers["x-stepwell-trajectory"] == "fork"


def test_a_stream_is_answered_from_the_record_too(forked):
    messages = [{"role": "user", "content": "hello 0"}]
    chunks = list(forked(1).create(model="tiny", messages=messages, tools=[TOOL], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "a"


def test_a_call_that_comes_again_is_answered_again(forked):
    create = forked(2).create
    assert play(create, 2) == ["a", "b"]
    assert play(create, 3) == ["a", "b", "x"]


def test_an_agent_that_knows_its_past_may_begin_where_the_fork_does(forked, pool):
    create, messages = forked(1).create, []
    for role, content in (("user", "hello 0"), ("assistant", "a"), ("user", "hello 1")):
        messages.append({"role": role, "content": content})
    assert create(model="tiny", messages=messages, tools=[TOOL]).choices[0].message.content == "x"
    assert [step.index for step in pool.trajectory("fork").steps] == [1]


def test_an_agent_that_is_known_to_begin_at_the_fork_is_sampled_even_if_it_asks_what_was_asked_before(forked, pool):
    """So does one whose context policy shows it the same at two turns."""
    first = [{"role": "user", "content": "hello 0"}]
    answer = forked(2, source=FORK).create(model="tiny", messages=first, tools=[TOOL])
    assert answer.choices[0].message.content == "x"
    assert [step.index for step in pool.trajectory("fork").steps] == [2]


@pytest.mark.parametrize(("index", "asked", "step"), [(2, "good day", 0), (0, "good day", 0)])
def test_an_agent_that_asks_something_else_is_told_where_it_differs_and_nothing_is_sampled(
    forked, pool, index, asked, step
):
    create, sampled = forked(index).create, len(forked.engine.requests)
    shown = (
        r"behind '<\|im_start\|>user\\n' the record has 'hello 0.*' as prompt token 6, and the agent sent 'good day 0"
    )
    with pytest.raises(openai.ConflictError, match=f"step {step} of trajectory trunk: {shown}"):
        play(create, 1, asked)
    assert len(forked.engine.requests) == sampled
    assert pool.trajectory("fork").steps == ()


def test_a_difference_ends_the_fork_and_its_record_says_which(forked, pool):
    create = forked(2).create
    with pytest.raises(openai.ConflictError) as refused:
        play(create, 1, "good day")
    assert refused.value.response.headers["x-should-retry"] == "false"
    fork = pool.trajectory("fork")
    assert (fork.status, "the agent sent 'good day 0" in fork.why) == ("failed", True)
    with pytest.raises(
        openai.ConflictError, match=r"has ended \(failed: the agent did not ask what was asked at step 0"
    ):
        play(create, 1)


def test_siblings_of_one_state_are_apart(forked, pool):
    play(forked(1, "left").create, 2)
    play(forked(1, "right").create, 2)
    left, right = pool.trajectory("left").steps, pool.trajectory("right").steps
    assert left[0].prompt_ids.tolist() == right[0].prompt_ids.tolist()
    assert left[0].id != right[0].id


def test_a_fork_whose_origin_is_not_here_is_an_error(forked, pool, client):
    group = GroupInfo(task_id="t", size=1, origin_id="nobody", origin_index=1)
    pool.put(group, TrajectoryInfo(id="orphan", group_id=group.id))
    create = forked(1).create
    play(create, 1)
    with pytest.raises(openai.ConflictError, match=r"fork of one that is gone.*nobody"):
        play(client(str(create.__self__._client.base_url).split("/t/")[0], path="orphan").chat.completions.create, 1)
