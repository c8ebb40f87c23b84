"""Whatever a client sends or an upstream does, each gets its own error in the dialect's shape, and all goes on well."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from tests.fakes.engines import ScriptedEngine
from tests.fakes.servers import wait_until
from tests.gateway.doors import CHAT, USER, Door, asgi_scope, conversations, counted, every_door, well

PATH = CHAT.path


@pytest.fixture
def http(renderer, pool) -> Iterator[TestClient]:
    app = create_app(ScriptedEngine(renderer), renderer, pool, GatewayConfig(max_body_bytes=100_000))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": "hello"},
        {"messages": None},
        {"messages": [None]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        {"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
        {"model": None},
        {"model": 7},
        {"n": 0},
        {"n": 1000},
        {"temperature": -1},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_p": 1.5},
        {"max_tokens": 0},
        {"max_tokens": -5},
        {"max_tokens": 1.5},
        {"stop": ["x"] * 17},
        {"stop": [""]},
        {"stop": ""},
        {"stop": 3},
        {"seed": "x"},
        {"logprobs": True, "top_logprobs": 21},
        {"response_format": {"type": "poem"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
        {"presence_penalty": 0.5},
        {"logit_bias": {"5": 1}},
        {"tool_choice": "required"},
        {"tool_choice": "perhaps"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": "f"},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        {"stream": "perhaps"},
    ],
    ids=str,
)
def test_a_wrong_field_is_400(http, change):
    assert CHAT.error(http.post(PATH, json={**CHAT.good, **change}), 400)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe",
        b'{"model": "tiny", "temperature": NaN}',
        b'{"model": "tiny", "temperature": 1e999}',
        b"[" * 90_000,
        b'{"a":' * 10_000,
    ],
    ids=lambda body: body[:60].decode("latin-1"),
)
@every_door
def test_a_body_that_is_no_call_is_400(http, door, body):
    door.error(http.post(door.path, content=body), 400)
    assert counted(http, door) == {"invalid_request": 1}
    well(http, door)


@every_door
def test_a_lone_surrogate_is_400(http, door):
    door.error(http.post(door.path, content=json.dumps(door.saying_text("\ud800"))), 400)
    well(http, door)


@conversations
def test_roles_parts_and_conversations_that_a_text_model_cannot_read_are_400(http, door):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    wrong = [
        [{"role": "robot", "content": "x"}],
        [{"role": "user", "content": [image]}],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}],
        [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "AA"}}]}],
        [{"role": "user", "content": 5}],
        [],
        [7],
    ]
    for said in wrong:
        door.error(http.post(door.path, json=door.saying(said)), 400)
    well(http, door)


@every_door
def test_an_unknown_model_is_404(http, door):
    assert "'gpt'" in door.error(http.post(door.path, json={**door.good, "model": "gpt"}), 404)
    assert counted(http, door) == {"model_not_found": 1}


@every_door
def test_a_prompt_over_the_context_is_400_and_says_how_long_it_is(renderer, pool, door):
    http = TestClient(create_app(ScriptedEngine(renderer, context_length=64), renderer, pool))
    message = door.error(http.post(door.path, json=door.saying_text("x" * 100)), 400)
    assert "64" in message
    assert counted(http, door) == {"context_length_exceeded": 1}
    assert door.name != "messages" or message.startswith("prompt is too long")
    well(http, door)


@every_door
def test_a_body_over_the_limit_is_413_whether_it_is_announced_or_not(http, door):
    def chunks() -> Iterator[bytes]:
        for _ in range(11):
            yield b" " * 10_000

    door.error(http.post(door.path, content=b" " * 100_001), 413)
    door.error(http.post(door.path, content=chunks()), 413)
    assert counted(http, door) == {"body_too_large": 2}
    well(http, door)


def test_a_body_of_fifty_megabytes_is_413_on_a_real_connection(renderer, serve):
    url = serve(ScriptedEngine(renderer))
    with httpx.Client(base_url=url) as http:
        CHAT.error(http.post(PATH, content=b" " * 50_000_000), 413)
        well(http)


@every_door
def test_a_body_that_comes_too_slowly_is_408(renderer, serve, door):
    url = serve(ScriptedEngine(renderer), GatewayConfig(body_seconds=0.05))
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as slow:
        slow.sendall(f"POST {door.path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
        assert slow.recv(200).startswith(b"HTTP/1.1 408 ")
    with httpx.Client(base_url=url) as http:
        assert counted(http, door) == {"body_too_slow": 1}
        well(http, door)


def test_thousands_of_tools_are_taken_or_refused_but_never_fail(renderer, pool):
    engine = ScriptedEngine(renderer, context_length=2_000_000)
    http = TestClient(create_app(engine, renderer, pool), raise_server_exceptions=False)
    tools = [{"type": "function", "function": {"name": f"f{index}"}} for index in range(3000)]
    assert http.post(PATH, json={**CHAT.good, "tools": tools}).status_code == 200
    well(http)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": ""},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "tool", "content": "orphan"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "not json"}}]},
        {"role": "user", "content": "x", "name": "me", "cache_control": {"type": "ephemeral"}},
        {"role": "user", "content": "\u0000 <|im_end|>"},
    ],
    ids=str,
)
def test_what_clients_really_send_is_accepted(http, message):
    extra = {"store": False, "prompt_cache_key": "k", "reasoning_effort": "low", "tools": [], "seed": -1, "n": 1}
    assert http.post(PATH, json={"model": "tiny", "messages": [message], **extra}).status_code == 200


def test_tools_that_are_no_functions_are_left_out(http):
    tools = [{"type": "web_search"}, {"function": {"name": "f"}, "defer_loading": True}]
    assert http.post(PATH, json={**CHAT.good, "tools": tools}).status_code == 200


@pytest.mark.parametrize(("role", "between"), [("system", "\n"), ("user", "\n"), ("tool", "\n"), ("assistant", "")])
def test_blocks_of_text_read_as_lines_except_for_the_assistants_own_words(renderer, pool, role, between):
    engine = ScriptedEngine(renderer)
    http = TestClient(create_app(engine, renderer, pool))
    for content in (f"a{between}b", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]):
        http.post(PATH, json={"model": "tiny", "messages": [{"role": role, "content": content}, USER]})
    first, second = (request.prompt_ids.tolist() for request in engine.requests)
    assert first == second


def test_an_unknown_model_has_no_entry(http):
    assert http.get("/v1/models/gpt").json()["error"]["code"] == "model_not_found"


def test_an_unknown_route_and_a_wrong_method_have_the_same_shape(http):
    CHAT.error(http.post("/v2/chat"), 404)
    CHAT.error(http.get(PATH), 405)


def test_every_base_path_that_clients_make_of_the_url_works(http):
    for base in ("", "/v1", "/v1/v1", "/t/a", "/t/a/v1", "/t/a/v1/v1"):
        url = f"{base}/chat/completions?beta=true"
        assert http.post(url, json=CHAT.good).status_code == 200
        assert http.get(f"{base}/models").json()["data"][0]["id"] == "tiny"


@pytest.mark.parametrize("name", ["-a", "%20", "a%0Ab", "a" * 201, "%C3%A4"])
@every_door
def test_a_trajectory_needs_a_name_that_fits_in_a_url(http, door, name):
    door.error(http.post(f"/t/{name}{door.path}", json=door.good), 400)


@every_door
def test_a_bug_is_500_in_the_same_shape_and_tells_the_log_not_the_client(renderer, pool, caplog, door):
    class Broken(ScriptedEngine):
        def generate(self, request):
            raise ZeroDivisionError("secret")

    http = TestClient(create_app(Broken(renderer), renderer, pool), raise_server_exceptions=False)
    assert "secret" not in door.error(http.post(door.path, json=door.good), 500)
    assert "secret" in caplog.text
    assert counted(http, door) == {"internal_error": 1}


@every_door
def test_an_engine_that_fails_is_503_before_the_first_token_and_an_error_in_the_stream_after_it(
    renderer, serve, pool, door
):
    engine = ScriptedEngine(renderer, ["well met"], fail_after=0)
    with httpx.Client(base_url=serve(engine)) as http:
        for stream in (False, True):
            assert "fails here" in door.error(http.post(door.path, json={**door.good, "stream": stream}), 503)
        engine.fail_after = 3
        door.error(http.post(door.path, json=door.good), 503)
        streamed = http.post(door.path, json={**door.good, "stream": True})
        assert (streamed.status_code, "fails here" in streamed.text) == (200, True)
        assert counted(http, door) == {"engine_error": 4}
        engine.fail_after = None
        well(http, door)
    assert pool.stats().steps == 3  # the two that began, and the good one


@every_door
def test_a_client_that_leaves_in_mid_stream_stops_the_engine_and_keeps_what_was_sampled(renderer, serve, pool, door):
    engine = ScriptedEngine(renderer, ["well met"], wait_after=3)
    with httpx.Client(base_url=serve(engine), timeout=20) as http:
        with http.stream("POST", f"/t/t1{door.path}", json={**door.good, "stream": True}) as stream:
            next(stream.iter_bytes())
        wait_until(lambda: engine.cancelled == 1)
        wait_until(lambda: counted(http, door) == {"client_gone": 1})
        engine.wait_after = None
        well(http, door)
    (step,) = pool.trajectory("t1").steps
    assert (step.finish_reason, len(step.response_ids)) == ("abort", 3)


@every_door
async def test_a_client_that_never_reads_its_stream_stops_the_engine_and_keeps_what_was_sampled(renderer, pool, door):
    engine = ScriptedEngine(renderer, ["well met, and a long day to you"])
    app = create_app(engine, renderer, pool, GatewayConfig(ping_seconds=0.01))
    body = [{"type": "http.request", "body": json.dumps({**door.good, "stream": True}).encode()}]
    taken: list[bytes] = []

    async def receive():
        return body.pop() if body else await asyncio.Future()

    async def send(message):
        taken.append(message.get("body", b""))
        if len(taken) > 8:
            await asyncio.Future()

    await asyncio.wait_for(app(asgi_scope(f"/t/t1{door.path}"), receive, send), 20)
    (step,) = pool.trajectory("t1").steps
    assert (step.finish_reason, 0 < len(step.response_ids) < 20) == ("abort", True)
    assert engine.cancelled == 1
    assert counted(TestClient(app), door) == {"client_gone": 1}


@every_door
def test_a_client_that_leaves_before_its_answer_stops_the_engine(renderer, serve, door):
    engine = ScriptedEngine(renderer, ["well met"], wait_after=3)
    with httpx.Client(base_url=serve(engine), timeout=20) as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post(door.path, json=door.good, timeout=0.3)
        wait_until(lambda: engine.cancelled == 1)
        wait_until(lambda: counted(http, door) == {"client_gone": 1})
        engine.wait_after = None
        well(http, door)


def test_a_client_that_leaves_while_it_sends_is_no_failure(renderer, serve, caplog):
    url = serve(ScriptedEngine(renderer))
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as gone:
        gone.sendall(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
    with httpx.Client(base_url=url) as http:
        wait_until(lambda: counted(http, CHAT) == {"client_gone": 1})
        well(http)
    assert not caplog.records


ANY_TEXT = st.text(st.characters(categories=None), max_size=8)  # lone surrogates and NUL included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["search", "f", "", "ü"])
TEXT = st.text(max_size=10)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "input_text", "output_text", "tool_use", "tool_result", "thinking", "image"])},
    optional={"text": TEXT, "id": TEXT, "name": NAMES, "input": JSON, "tool_use_id": TEXT, "content": JSON},
)
CONTENT = st.none() | TEXT | st.lists(BLOCKS, max_size=2)
CALL = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": NAMES}, optional={"arguments": TEXT})})
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES},
    optional={
        "content": CONTENT,
        "tool_calls": st.none() | st.lists(CALL, max_size=2),
        "tool_call_id": st.none() | TEXT,
    },
)
ITEM = MESSAGE | st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["function_call", "function_call_output", "reasoning", "item_reference", "web_search_call"]
        )
    },
    optional={"id": TEXT, "call_id": TEXT, "name": NAMES, "arguments": TEXT, "output": JSON, "summary": JSON},
)
PARAMETERS = st.dictionaries(st.sampled_from(["type", "properties", "required", "x"]), JSON, max_size=3)
FUNCTION = st.fixed_dictionaries(
    {"name": NAMES}, optional={"parameters": PARAMETERS, "input_schema": PARAMETERS, "description": TEXT}
)
TOOL = FUNCTION | st.fixed_dictionaries({"function": FUNCTION}) | st.fixed_dictionaries({"type": NAMES | TEXT})
CHOICE = st.sampled_from([None, "auto", "none", "required", {"type": "any"}, {"type": "tool", "name": "f"}])
PLAUSIBLE = {
    "tools": st.none() | st.lists(TOOL, max_size=2),
    "stop": st.none() | st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=5),
    "seed": st.none() | st.integers(),
    "n": st.none() | st.integers(0, 3),
    "max_tokens": st.none() | st.integers(-1, 10**9),
    "max_completion_tokens": st.none() | st.integers(-1, 3),
    "max_output_tokens": st.none() | st.integers(-1, 3),
    "temperature": st.none() | st.floats(-0.5, 2.5),
    "top_p": st.none() | st.floats(0, 1.2),
    "logprobs": st.none() | st.booleans() | st.integers(0, 3),
    "stream": st.none() | st.booleans(),
    "stream_options": st.none() | st.fixed_dictionaries({"include_usage": st.booleans()}),
    "tool_choice": CHOICE,
    "response_format": st.sampled_from([None, {"type": "text"}, {"type": "json_object"}]),
    "system": CONTENT,
    "thinking": JSON,
    "instructions": st.none() | TEXT,
    "previous_response_id": st.none() | TEXT,
    "metadata": JSON,
}
SAID = {
    "chat": st.lists(MESSAGE, min_size=1, max_size=3),
    "completions": TEXT | st.lists(st.integers(0, 300), max_size=4) | st.lists(TEXT, max_size=1),
    "responses": TEXT | st.lists(ITEM, min_size=1, max_size=3),
    "messages": st.lists(MESSAGE, min_size=1, max_size=3),
}


@st.composite
def bodies(draw, door: Door) -> dict[str, Any]:
    """Plausible, or with one field replaced by anything: what is wrong in one place only gets furthest."""
    plausible = st.fixed_dictionaries({"model": st.just("tiny"), door.text: SAID[door.name]}, optional=PLAUSIBLE)
    body = {"max_tokens": 4, **draw(plausible)}
    where = draw(st.sampled_from(["nowhere", "top", "deep"]))
    if where == "top":
        body[draw(st.sampled_from([*PLAUSIBLE, door.text, "model"]))] = draw(JSON)
    elif (
        where == "deep"
        and isinstance(body[door.text], list)
        and body[door.text]
        and isinstance(body[door.text][0], dict)
    ):
        field = draw(st.sampled_from(["role", "type", "content", "tool_calls", "tool_call_id", "id", "name"]))
        body[door.text] = [{**body[door.text][0], field: draw(JSON)}, *body[door.text][1:]]
    return body


@every_door
def test_no_body_whatsoever_makes_the_gateway_fail(http, door):
    @settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=80)
    @given(body=bodies(door))
    def check(body: dict[str, Any]) -> None:
        response = http.post(door.path, content=json.dumps(body))
        assert response.status_code < 500, response.text
        if response.status_code != 200:
            door.error(response, response.status_code)

    check()
    well(http, door)
