"""Whatever a client sends, it gets an error of its own making: never a 5xx, always in OpenAI's shape."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from tests.fakes.engines import ScriptedEngine

USER = {"role": "user", "content": "hello"}
PATH = "/v1/chat/completions"


@pytest.fixture
def http(renderer, pool) -> Iterator[TestClient]:
    app = create_app(ScriptedEngine(renderer), renderer, pool, GatewayConfig(max_body_bytes=100_000))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def _error(response, status: int) -> dict[str, object]:
    assert response.status_code == status, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return response.json()["error"]


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
        {"n": 2},
        {"n": 0},
        {"temperature": -1},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_p": 1.5},
        {"max_tokens": 0},
        {"max_tokens": -5},
        {"max_tokens": 1.5},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"stop": [""]},
        {"stop": ""},
        {"stop": 3},
        {"seed": "x"},
        {"logprobs": True, "top_logprobs": 5},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": "f"},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        {"stream": "perhaps"},
    ],
    ids=str,
)
def test_a_wrong_field_is_400(http, change):
    _error(http.post(PATH, json={"model": "tiny", "messages": [USER], **change}), 400)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b"[" * 90_000,
        b'{"a":' * 10_000,
    ],
    ids=lambda body: body[:60].decode("latin-1"),
)
def test_a_body_that_is_no_call_is_400(http, body):
    _error(http.post(PATH, content=body), 400)


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
    assert http.post(PATH, json={"model": "tiny", "messages": [USER], "tools": tools}).status_code == 200


def test_blocks_of_text_read_as_their_concatenation(renderer, pool):
    engine = ScriptedEngine(renderer)
    http = TestClient(create_app(engine, renderer, pool))
    for content in ("ab", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]):
        http.post(PATH, json={"model": "tiny", "messages": [{"role": "user", "content": content}]})
    first, second = (request.prompt_ids.tolist() for request in engine.requests)
    assert first == second


def test_an_unknown_model_is_404_with_its_code(http):
    assert _error(http.post(PATH, json={"model": "gpt", "messages": [USER]}), 404)["code"] == "model_not_found"
    assert _error(http.get("/v1/models/gpt"), 404)["code"] == "model_not_found"


def test_a_body_over_the_limit_is_413(http):
    assert _error(http.post(PATH, content=b" " * 100_001), 413)["code"] == "body_too_large"


def test_an_unknown_route_and_a_wrong_method_have_the_same_shape(http):
    _error(http.post("/v2/chat"), 404)
    _error(http.get(PATH), 405)


def test_every_base_path_that_clients_make_of_the_url_works(http):
    for base in ("", "/v1", "/v1/v1", "/t/a", "/t/a/v1", "/t/a/v1/v1"):
        url = f"{base}/chat/completions?beta=true"
        assert http.post(url, json={"model": "tiny", "messages": [USER]}).status_code == 200
        assert http.get(f"{base}/models").json()["data"][0]["id"] == "tiny"


def test_a_bug_is_500_in_the_same_shape_and_tells_the_log_not_the_client(renderer, pool, caplog):
    class Broken(ScriptedEngine):
        def generate(self, request):
            raise ZeroDivisionError("secret")

    http = TestClient(create_app(Broken(renderer), renderer, pool), raise_server_exceptions=False)
    error = _error(http.post(PATH, json={"model": "tiny", "messages": [USER]}), 500)
    assert "secret" not in json.dumps(error)
    assert "secret" in caplog.text


ANY_TEXT = st.text(st.characters(categories=None), max_size=8)  # lone surrogates and NUL included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["search", "f", "", "ü"])
TEXT = st.text(max_size=10)
CALL = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": NAMES}, optional={"arguments": TEXT})})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
    optional={
        "content": st.none() | TEXT | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})),
        "tool_calls": st.none() | st.lists(CALL, max_size=2),
        "tool_call_id": st.none() | TEXT,
    },
)
PARAMETERS = st.dictionaries(st.sampled_from(["type", "properties", "required", "x"]), JSON, max_size=3)
TOOL = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": NAMES}, optional={"parameters": PARAMETERS})})
PLAUSIBLE = {
    "tools": st.none() | st.lists(TOOL, max_size=2),
    "stop": st.none() | st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=5),
    "seed": st.none() | st.integers(),
    "max_tokens": st.none() | st.integers(-1, 10**9),
    "max_completion_tokens": st.none() | st.integers(-1, 3),
    "temperature": st.none() | st.floats(-0.5, 2.5),
    "top_p": st.none() | st.floats(0, 1.2),
    "logprobs": st.none() | st.booleans(),
    "stream": st.none() | st.booleans(),
    "stream_options": st.none() | st.fixed_dictionaries({"include_usage": st.booleans()}),
    "tool_choice": st.sampled_from([None, "auto", "none", "required"]),
    "metadata": JSON,
}
BODY = st.fixed_dictionaries(
    {"model": st.just("tiny"), "messages": st.lists(MESSAGE, min_size=1, max_size=3)}, optional=PLAUSIBLE
)
# One field replaced by anything: what is wrong in one place only gets furthest.
BROKEN = st.tuples(BODY, st.sampled_from([*PLAUSIBLE, "messages", "model"]), JSON).map(lambda t: {**t[0], t[1]: t[2]})
DEEP = st.tuples(BODY, st.sampled_from(["role", "content", "tool_calls", "tool_call_id"]), JSON).map(
    lambda t: {**t[0], "messages": [{**t[0]["messages"][0], t[1]: t[2]}]}
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(body=BODY | BROKEN | DEEP)
def test_no_body_whatsoever_makes_the_gateway_fail(http, body):
    response = http.post(PATH, content=json.dumps(body))
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        _error(response, response.status_code)
