"""Who may do what: the door is closed unless a rule opens it."""

import base64

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.guard import needed_scope
from stepwell.gateway.keys import SCOPES, KeyRing
from stepwell.types import TrajectoryInfo
from tests.fakes.engines import ScriptedEngine

CALL = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
BASES = ("", "/v1", "/v1/v1", "/t/a", "/t/a/v1", "/t/a/v1/v1")


@pytest.fixture
def keys(tmp_path):
    return KeyRing.open(tmp_path / "keys.json")


@pytest.fixture
def http(renderer, pool, keys):
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool, keys=keys)) as client:
        yield client


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("base", BASES)
def test_calling_models_needs_the_scope_agent_below_every_base(base):
    for rest in (
        "/chat/completions",
        "/completions",
        "/responses",
        "/messages",
        "/messages/count_tokens",
        "/tokenize",
        "/embeddings",
    ):
        assert needed_scope("POST", base + rest) == "agent"
    for rest in ("/models", "/models/org/name"):
        assert needed_scope("GET", base + rest) == "agent"
    assert needed_scope("HEAD", base or "/") is None
    assert needed_scope("GET", base + "/api/hello") is None


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/health", None),
        ("GET", "/ready", None),
        ("OPTIONS", "/v1/steps", None),
        ("POST", "/v1/steps", "ingest"),
        ("POST", "/v1/trajectories/t/end", "ingest"),
        ("POST", "/v1/sessions", "ingest"),
        ("POST", "/v1/feedback", "ingest"),
        ("GET", "/v1/trajectories/t", "trainer"),
        ("GET", "/v1/stats", "trainer"),
        ("GET", "/metrics", "trainer"),
        ("GET", "/openapi.json", "trainer"),
        ("GET", "/", "trainer"),
        ("GET", "/trajectory/t", "trainer"),
        ("POST", "/v1/admin/pause", "admin"),
        ("GET", "/v1/admin/status", "admin"),
        ("DELETE", "/whatever/else", "trainer"),
        # names that look like open paths open nothing
        ("GET", "/v1/trajectories/ready", "trainer"),
        ("GET", "/v1/trajectories/health", "trainer"),
        ("GET", "/v1/trajectories/models", "trainer"),
        ("GET", "/trajectory/models/x", "trainer"),
        ("GET", "/t/a/health", "trainer"),
        ("HEAD", "/v1/trajectories/t", "trainer"),
        ("GET", "/v1/v1/v1/models", "trainer"),
    ],
)
def test_each_route_needs_its_scope(method, path, scope):
    assert needed_scope(method, path) == scope


def test_a_request_without_a_key_or_with_a_wrong_one_is_401_in_its_dialects_shape(http):
    for headers in ({}, bearer("swk_a_b"), bearer("sk-something"), {"x-api-key": "sw-t1"}):
        chat = http.post("/v1/chat/completions", json=CALL, headers=headers)
        anthropic = [http.post(f"/v1/messages{end}", json=CALL, headers=headers) for end in ("", "/count_tokens")]
        assert [chat.status_code, *(answer.status_code for answer in anthropic)] == [401] * 3
        assert chat.json()["error"]["code"] == "invalid_api_key"
        assert {answer.json()["error"]["type"] for answer in anthropic} == {"authentication_error"}
        assert chat.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_opens_what_its_scope_is_for_and_nothing_else(http, keys, scope):
    headers = bearer(keys.create("k", [scope]))
    asked = {
        "agent": http.post("/v1/chat/completions", json=CALL, headers=headers),
        "ingest": http.post("/v1/trajectories", json={}, headers=headers),
        "trainer": http.get("/v1/stats", headers=headers),
        "admin": http.get("/v1/admin/status", headers=headers),
    }
    opened = {name for name, answer in asked.items() if answer.status_code == 200}
    assert opened == (set(SCOPES) if scope == "admin" else {scope})
    assert all(answer.status_code == 403 for name, answer in asked.items() if name not in opened)


def test_health_needs_no_key(http):
    assert [http.get(path).status_code for path in ("/health", "/ready", "/v1/api/hello")] == [200] * 3
    assert http.head("/t/a/v1").status_code == 200


def test_anthropics_header_carries_a_key_too(http, keys):
    body = {**CALL, "max_tokens": 4}
    assert http.post("/v1/messages", json=body, headers={"x-api-key": keys.create("k", ["agent"])}).status_code == 200


def test_a_browser_sends_the_key_as_a_password(http, keys):
    def basic(text):
        return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}

    assert http.get("/v1/stats", headers=basic("anyone:" + keys.create("k", ["trainer"]))).status_code == 200
    assert http.get("/v1/stats", headers=basic("anyone:wrong")).status_code == 401
    assert http.get("/v1/stats", headers={"authorization": "Basic ?"}).status_code == 401


def test_a_session_key_is_bound_to_its_trajectory(http, keys, pool):
    headers = bearer(keys.session_key("t1"))
    for base in ("/v1", "/t/t1/v1"):
        assert (
            http.post(f"{base}/chat/completions", json=CALL, headers=headers).headers["x-stepwell-trajectory"] == "t1"
        )
    hinted = http.post("/v1/chat/completions", json=CALL, headers={**headers, "x-stepwell-trajectory": "t2"})
    assert hinted.headers["x-stepwell-trajectory"] == "t1"
    assert http.post("/t/t2/v1/chat/completions", json=CALL, headers=headers).status_code == 403
    assert http.get("/v1/trajectories/t1", headers=headers).status_code == 403
    assert len(pool.trajectory("t1").steps) == 3


def test_the_key_of_a_session_that_was_opened_over_http_works(http, keys):
    opened = http.post("/v1/sessions", json={}, headers=bearer(keys.create("k", ["ingest"]))).json()
    answer = http.post("/v1/chat/completions", json=CALL, headers=bearer(opened["api_key"]))
    assert answer.headers["x-stepwell-trajectory"] == opened["trajectory_id"]


def test_a_websocket_without_a_key_is_refused(http):
    with pytest.raises(WebSocketDisconnect) as refused, http.websocket_connect("/_nicegui_ws/socket.io"):
        pass
    assert refused.value.code == 1008


def test_without_keys_everybody_may_do_everything(renderer, pool):
    pool.put(TrajectoryInfo(id="t1"))
    http = TestClient(create_app(ScriptedEngine(renderer), renderer, pool))
    assert http.get("/v1/trajectories/t1").status_code == 200
    assert http.post("/v1/chat/completions", json=CALL, headers=bearer("sk-whatever")).status_code == 200
    assert http.post("/v1/admin/pause").status_code == 200


def test_other_websites_are_refused_unless_they_are_named(renderer, pool, keys):
    ask = {"origin": "https://app.example", "access-control-request-method": "POST"}
    closed = TestClient(create_app(ScriptedEngine(renderer), renderer, pool))
    assert "access-control-allow-origin" not in closed.options("/v1/chat/completions", headers=ask).headers
    assert "access-control-allow-origin" not in closed.get("/health", headers=ask).headers
    config = GatewayConfig(cors_origins=("https://app.example",))
    opened = TestClient(create_app(ScriptedEngine(renderer), renderer, pool, config, keys))
    preflight = opened.options("/v1/chat/completions", headers=ask)
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, "https://app.example")
    refused = opened.post("/v1/chat/completions", json=CALL, headers={"origin": "https://app.example"})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://app.example")
    other = {**ask, "origin": "https://other.example"}
    assert opened.options("/v1/chat/completions", headers=other).status_code == 400
