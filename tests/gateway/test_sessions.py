"""Which trajectory a call lands in, and what survives a restart."""

import threading
from itertools import pairwise

import openai
import pytest

from stepwell.errors import NotFound
from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.types import Annotation
from tests.fakes.engines import ScriptedEngine
from tests.fakes.servers import serving, wait_until

USER = {"role": "user", "content": "hello"}


def _talk(create, turns: int, messages: list[dict[str, object]] | None = None) -> list[dict[str, object]]:
    messages = messages or []
    for _ in range(turns):
        messages = [*messages, USER]
        answer = create(model="tiny", messages=messages).choices[0].message.content
        messages = [*messages, {"role": "assistant", "content": answer}]
    return messages


def test_the_path_names_the_trajectory_and_it_is_opened_on_first_use(renderer, serve, client, pool):
    url = serve(ScriptedEngine(renderer))
    with pytest.raises(NotFound):
        pool.trajectory("t-1")
    _talk(client(url, path="t-1").chat.completions.create, 2)
    stored = pool.trajectory("t-1")
    assert [step.index for step in stored.steps] == [0, 1]
    assert (stored.info.source, stored.info.agent, stored.status) == ("gateway", "OpenAI/Python", "open")


def test_the_key_names_the_trajectory_too_and_the_path_wins(renderer, serve, client, pool):
    url = serve(ScriptedEngine(renderer))
    _talk(client(url, key="sw-by-key").chat.completions.create, 1)
    _talk(client(url, key="sw-by-key", path="by-path").chat.completions.create, 1)
    assert [len(pool.trajectory(name).steps) for name in ("by-key", "by-path")] == [1, 1]


def test_a_call_without_a_name_continues_the_trajectory_whose_answer_it_brings_back(renderer, serve, client, pool):
    _talk(client(serve(ScriptedEngine(renderer))).chat.completions.create, 3)
    (line,) = pool.trajectories()
    first, second, third = pool.trajectory(line[1].info.id).steps
    assert [step.parent_id for step in (first, second, third)] == ["", first.id, second.id]
    assert [step.fork for step in (first, second, third)] == ["root", "", ""]


def test_a_history_that_departs_after_an_answer_is_another_branch_of_its_trajectory(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer, ["a1", "a2", "b2"]))).chat.completions.create
    history = _talk(create, 1)
    _talk(create, 1, history)
    create(model="tiny", messages=[*history, {"role": "user", "content": "something else"}])
    (line,) = pool.trajectories()
    first, second, third = pool.trajectory(line[1].info.id).steps
    assert (second.parent_id, third.parent_id, third.fork) == (first.id, first.id, "")


def test_conversations_that_share_nothing_but_the_question_are_trajectories_of_their_own(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer))).chat.completions.create
    system = {"role": "system", "content": "Be brief."}
    histories = [_talk(create, 1, [system]) for _ in range(3)]  # the same question, and the same answer
    for history in histories:
        _talk(create, 1, history)
    assert sorted(summary.steps for _, summary in pool.trajectories()) == [2, 2, 2]


def test_another_key_never_continues_a_trajectory(renderer, serve, client, pool):
    url = serve(ScriptedEngine(renderer))
    history = _talk(client(url, key="one").chat.completions.create, 1)
    _talk(client(url, key="two").chat.completions.create, 1, history)
    assert pool.stats().trajectories == 2


def test_a_client_that_changes_its_user_agent_goes_on_in_the_same_trajectory(renderer, serve, client, pool):
    caller = client(serve(ScriptedEngine(renderer)))
    history = _talk(caller.chat.completions.create, 1)
    _talk(caller.with_options(default_headers={"user-agent": "another/1"}).chat.completions.create, 1, history)
    ((_, summary),) = pool.trajectories()
    assert summary.steps == 2


def test_an_answer_that_comes_back_rewritten_is_a_fork_by_the_client(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer, ["call it"]))).chat.completions.create
    create(model="tiny", messages=[USER])
    create(model="tiny", messages=[USER, {"role": "assistant", "content": "call it</code> and more"}, USER])
    (line,) = pool.trajectories()
    first, second = pool.trajectory(line[1].info.id).steps
    assert (second.parent_id, second.fork) == (first.id, "client")
    assert "call it</code> and more" in renderer.decode(second.prompt_ids)


def test_an_answer_that_the_agent_leaves_out_still_belongs_to_the_trajectory(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer))).chat.completions.create
    create(model="tiny", messages=[USER])
    create(model="tiny", messages=[USER, {"role": "user", "content": "That was no command."}])
    assert [summary.steps for _, summary in pool.trajectories()] == [2]


@pytest.mark.parametrize(
    "name",
    ["x-stepwell-trajectory", "x-claude-code-session-id", "session-id", "x-session-id", "x-openclaw-session-key"],
)
def test_headers_name_the_trajectory(renderer, serve, client, pool, name):
    sdk = client(serve(ScriptedEngine(renderer))).with_options(default_headers={name: "s-1"})
    for _ in range(2):
        sdk.chat.completions.create(model="tiny", messages=[USER])
    assert len(pool.trajectory("s-1").steps) == 2


def test_a_session_id_of_the_clients_own_making_is_never_refused(renderer, serve, client, pool):
    sdk = client(serve(ScriptedEngine(renderer))).with_options(default_headers={"x-session-id": "agent/main?task"})
    for _ in range(2):
        sdk.chat.completions.create(model="tiny", messages=[USER])
    assert [summary.steps for _, summary in pool.trajectories()] == [2]


def test_a_title_call_is_kept_apart_from_the_main_line(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer)), path="t1").chat.completions.create
    _talk(create, 1)
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "title", "schema": schema}}
    create(model="tiny", messages=[USER], response_format=form)
    assert len(pool.trajectory("t1").steps) == 1
    (side,) = pool.trajectory("t1~side").steps
    assert (side.side, side.trainable) == ("title", False)


def test_a_title_call_that_brings_a_history_back_stays_off_its_trajectory(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer))).chat.completions.create
    history = _talk(create, 1)
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "title", "schema": schema}}
    create(model="tiny", messages=[*history, USER], response_format=form)
    assert sorted(summary.info.id.endswith("~side") for _, summary in pool.trajectories()) == [False, True]


def test_a_call_without_tools_about_something_else_is_beside_a_session_that_has_tools(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer)), path="t1").chat.completions.create
    tool = {"type": "function", "function": {"name": "f"}}
    create(model="tiny", messages=[USER], tools=[tool])
    create(model="tiny", messages=[{"role": "user", "content": "Write a commit message."}])
    assert [len(pool.trajectory(name).steps) for name in ("t1", "t1~side")] == [1, 1]
    assert pool.trajectory("t1~side").steps[0].side == "other"


def test_a_retry_of_a_call_whose_answer_was_lost_gets_the_same_answer_and_makes_no_step(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["first", "second"])
    create = client(serve(engine), path="t1").chat.completions.create
    first = create(model="tiny", messages=[USER])
    again = create(model="tiny", messages=[USER], extra_headers={"x-stainless-retry-count": "1"})
    assert (again.id, again.choices, again.usage.completion_tokens) == (
        first.id,
        first.choices,
        first.usage.completion_tokens,
    )
    streamed = create(model="tiny", messages=[USER], stream=True, extra_headers={"idempotency-key": "k"})
    list(streamed)
    other = create(model="tiny", messages=[USER], stream=True, extra_headers={"idempotency-key": "k"})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in other) == "second"
    assert len(pool.trajectory("t1").steps) == 2


def test_the_same_call_after_a_failure_is_a_retry_in_the_same_trajectory(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["abcdef"], fail_after=2)
    create = client(serve(engine)).chat.completions.create
    with pytest.raises(openai.InternalServerError):
        create(model="tiny", messages=[USER])
    engine.fail_after = None
    create(model="tiny", messages=[USER])
    (line,) = pool.trajectories()
    cut, whole = pool.trajectory(line[1].info.id).steps
    assert (cut.finish_reason, cut.trainable, whole.finish_reason) == ("abort", False, "stop")


def test_the_same_call_after_a_success_is_a_new_sample(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer))).chat.completions.create
    for _ in range(3):
        create(model="tiny", messages=[USER])
    assert (pool.stats().trajectories, pool.stats().steps) == (3, 3)


@pytest.mark.parametrize("path", ["bad%20name", "%C3%BC", "-", "x" * 201, ".hidden"])
def test_a_name_with_other_characters_is_refused(renderer, serve, client, path, pool):
    with pytest.raises(openai.BadRequestError, match="trajectory id"):
        _talk(client(serve(ScriptedEngine(renderer)), path=path).chat.completions.create, 1)
    assert pool.stats().steps == 0


def test_an_empty_name_in_the_key_is_refused(renderer, serve, client):
    with pytest.raises(openai.BadRequestError, match="trajectory id"):
        _talk(client(serve(ScriptedEngine(renderer)), key="sw-").chat.completions.create, 1)


@pytest.mark.parametrize("known", [False, True])
def test_a_trajectory_that_has_ended_takes_no_more_calls(renderer, serve, client, pool, known):
    engine = ScriptedEngine(renderer)
    create = client(serve(engine), path="t1").chat.completions.create
    _talk(create, 1)
    if not known:  # a second gateway has not seen the trajectory yet
        create = client(serve(engine), path="t1").chat.completions.create
    pool.put(Annotation.end("t1", "terminated"))
    with pytest.raises(openai.ConflictError, match="ended"):
        _talk(create, 1)


def test_a_client_whose_own_session_outlives_its_trajectory_goes_on_in_a_new_one(renderer, serve, client, pool):
    sdk = client(serve(ScriptedEngine(renderer))).with_options(default_headers={"x-session-id": "s-1"})
    history = _talk(sdk.chat.completions.create, 1)
    pool.put(Annotation.end("s-1", "terminated"))
    sdk._client.post(f"{sdk.base_url}rewards", json={"trajectory_id": "s-1", "value": 1.0}).raise_for_status()
    other = client(serve(ScriptedEngine(renderer))).with_options(default_headers={"x-session-id": "s-1"})
    _talk(other.chat.completions.create, 2, history)
    assert sorted(summary.steps for _, summary in pool.trajectories()) == [1, 2]


def test_a_conversation_without_a_name_that_goes_on_after_its_end_is_a_new_trajectory(renderer, serve, client, pool):
    sdk = client(serve(ScriptedEngine(renderer)))
    history = _talk(sdk.chat.completions.create, 1)
    ((_, first),) = pool.trajectories()
    end = f"{sdk.base_url}trajectories/{first.info.id}/end"
    sdk._client.post(end, json={"how": "terminated"}).raise_for_status()
    _talk(sdk.chat.completions.create, 1, history)
    assert [summary.status for _, summary in pool.trajectories()] == ["open", "terminated"]


def test_a_restarted_gateway_goes_on_with_the_next_index_and_the_same_ids(renderer, client, pool):
    messages: list[dict[str, object]] = []
    odd = [int(renderer.encode(letter)[0]) for letter in "hello"]
    for _ in range(2):
        app = create_app(ScriptedEngine(renderer, [odd]), renderer, pool)
        with serving(app) as url:
            messages = _talk(client(url, path="t1").chat.completions.create, 2, messages)
    steps = pool.trajectory("t1").steps
    assert [step.index for step in steps] == [0, 1, 2, 3]
    for earlier, later in pairwise(steps):
        before = [*earlier.prompt_ids, *earlier.response_ids]
        assert later.prompt_ids[: len(before)].tolist() == before


def test_sessions_beyond_the_capacity_are_read_back_from_the_pool(renderer, serve, client, pool):
    url = serve(ScriptedEngine(renderer), GatewayConfig(max_sessions=1))
    for _ in range(2):
        for name in ("a", "b"):
            _talk(client(url, path=name).chat.completions.create, 1)
    assert [step.index for name in ("a", "b") for step in pool.trajectory(name).steps] == [0, 1, 0, 1]


def test_a_subagent_extends_its_own_last_step_although_another_came_between(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer, ["abc"])), path="t1").chat.completions.create
    main = _talk(create, 1)
    _talk(create, 1, [{"role": "system", "content": "You are the subagent."}])
    _talk(create, 1, main)
    first, _, third = pool.trajectory("t1").steps
    before = [*first.prompt_ids, *first.response_ids]
    assert third.prompt_ids[: len(before)].tolist() == before


def test_steps_that_somebody_else_submits_do_not_collide_with_the_next_call(renderer, serve, client, pool):
    url = serve(ScriptedEngine(renderer))
    sdk = client(url, path="t1")
    _talk(sdk.chat.completions.create, 1)
    own = {"trajectory_id": "t1", "index": 1, "prompt_ids": [1], "response_ids": [2], "logprobs": [-1.0]}
    sdk._client.post(f"{url}/v1/steps", json=own).raise_for_status()
    _talk(sdk.chat.completions.create, 1)
    assert [step.index for step in pool.trajectory("t1").steps] == [0, 1, 2]


def test_a_subagent_that_starts_before_its_parent_has_answered_is_not_the_root(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["abc"], wait_after=1)
    create = client(serve(engine), path="t1").chat.completions.create
    parent = threading.Thread(target=create, kwargs={"model": "tiny", "messages": [USER]})
    parent.start()
    wait_until(lambda: engine.sampled == 1)
    engine.go.set()
    create(model="tiny", messages=[{"role": "system", "content": "You are the subagent."}, USER])
    parent.join()
    assert sorted(step.fork for step in pool.trajectory("t1").steps) == ["client", "root"]


def test_rollouts_one_after_the_other_with_the_same_first_answer_stay_apart(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer))).chat.completions.create
    for _ in range(3):
        _talk(create, 3)
    assert [summary.steps for _, summary in pool.trajectories()] == [3, 3, 3]


def test_a_retry_waits_for_the_attempt_that_is_under_way(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["one", "two"], wait_after=1)
    create = client(serve(engine), path="t1").chat.completions.create
    answers: list[str] = []

    def ask() -> None:
        answer = create(model="tiny", messages=[USER], extra_headers={"idempotency-key": "k"})
        answers.append(answer.choices[0].message.content)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: engine.sampled == 1)
    engine.go.set()
    for thread in threads:
        thread.join()
    assert answers == ["one"] * 3
    assert len(pool.trajectory("t1").steps) == 1
