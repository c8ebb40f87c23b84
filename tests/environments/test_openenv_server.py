"""Our environments are played by OpenEnv's own client, and what a client may get wrong is answered."""

import asyncio
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from stepwell.environments.lookup import LookupConfig
from stepwell.environments.openenv_server import openenv_app
from tests.environments.servers import serve


@pytest.fixture
def client() -> TestClient:
    return TestClient(openenv_app(LookupConfig().build(), sessions=2))


def _ask(socket: Any, kind: str, **data: object) -> dict[str, Any]:
    socket.send_text(json.dumps({"type": kind, "data": data}))
    answer: dict[str, Any] = socket.receive_json()
    return answer


def _call(name: str, **arguments: str) -> dict[str, object]:
    return {"tool_calls": [{"id": "1", "name": name, "arguments": json.dumps(arguments)}]}


def test_an_episode_is_begun_stepped_and_done(client: TestClient) -> None:
    with client.websocket_connect("/ws") as socket:
        begun = _ask(socket, "reset", task_id="train-3")["data"]
        item = begun["observation"]["messages"][0]["content"].removeprefix("find ")
        assert [tool["function"]["name"] for tool in begun["observation"]["tools"]] == ["search", "open", "answer"]
        box = _ask(socket, "step", **_call("search", item=item))["data"]["observation"]["messages"][0]["content"]
        colour = _ask(socket, "step", **_call("open", box=box))["data"]["observation"]["messages"][0]["content"]
        assert _ask(socket, "state")["data"] == {"episode_id": "train-3", "step_count": 2}
        done = _ask(socket, "step", **_call("answer", colour=colour))["data"]
    assert done["done"]
    assert done["reward"] == 1.0


def test_tasks_are_chosen_by_index_too(client: TestClient) -> None:
    with client.websocket_connect("/ws") as socket:
        by_index = _ask(socket, "reset", split="test", index=5)
        assert _ask(socket, "reset", task_id="test-5") == by_index


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[]", "INVALID_JSON"),
        ("[" * 10_000, "INVALID_JSON"),
        ('{"type": "fly"}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"tool_calls": 3}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"task_id": "nowhere"}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"split": "validation"}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"index": 10000000}}', "EXECUTION_ERROR"),
    ],
)
def test_a_mistake_is_answered_and_the_session_goes_on(client: TestClient, text: str, code: str) -> None:
    with client.websocket_connect("/ws") as socket:
        socket.send_text(text)
        assert socket.receive_json()["data"]["code"] == code
        assert _ask(socket, "reset")["type"] == "observation"


def test_no_more_sessions_than_allowed(client: TestClient) -> None:
    with client, client.websocket_connect("/ws") as first, client.websocket_connect("/ws") as second:
        assert _ask(first, "reset")["type"] == _ask(second, "reset")["type"] == "observation"
        with client.websocket_connect("/ws") as third:
            assert third.receive_json()["data"]["code"] == "CAPACITY_REACHED"


_ANSWER = {"content": "I do not know."}


async def test_openenvs_own_client_plays_it() -> None:
    generic = pytest.importorskip("openenv.core.generic_client", reason="needs: pip install openenv")
    client = generic.GenericEnvClient(base_url=serve(openenv_app(LookupConfig().build())))
    if hasattr(client, "__aenter__"):
        async with client:
            begun = await client.reset(task_id="train-3")
            ended = await client.step(_ANSWER)
    else:  # before 0.3

        def play() -> tuple[Any, Any]:
            with client:
                return client.reset(task_id="train-3"), client.step(_ANSWER)

        begun, ended = await asyncio.to_thread(play)
    assert begun.observation["messages"][0]["content"].startswith("find ")
    assert ended.done
    assert ended.reward == 0.0
