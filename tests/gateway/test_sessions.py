"""Which trajectory a call lands in, and what survives a restart."""

from itertools import pairwise

import openai
import pytest

from stepwell.errors import NotFound
from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.types import Annotation
from tests.fakes.engines import ScriptedEngine
from tests.fakes.servers import serving

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


def test_calls_without_a_name_are_trajectories_of_their_own(renderer, serve, client, pool):
    _talk(client(serve(ScriptedEngine(renderer))).chat.completions.create, 3)
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
