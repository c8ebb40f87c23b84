"""Alive, ready, paused, drained: the routes for those who run the gateway."""

import asyncio
import threading

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from stepwell.gateway import observe, operations
from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.gate import Gate
from stepwell.gateway.keys import KeyRing
from stepwell.gateway.observe import Meters
from stepwell.gateway.operations import Operations
from tests.fakes.engines import ScriptedEngine
from tests.fakes.servers import wait_until
from tests.gateway.doors import DOORS, asgi_scope
from tests.pool.builders import make_step

CALL = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
PATH = "/v1/chat/completions"


@pytest.fixture
def engine(renderer):
    return ScriptedEngine(renderer)


@pytest.fixture
def http(engine, pool):
    with TestClient(create_app(engine, engine.renderer, pool)) as client:
        yield client


def test_it_is_ready_when_engine_pool_and_gate_are(http):
    answer = http.get("/ready")
    assert (answer.status_code, answer.json()) == (
        200,
        {"ready": True, "engine": True, "pool": True, "gate": "open"},
    )


def test_it_is_not_ready_while_the_engine_is_unwell_but_alive_all_the_same(http, engine):
    engine.well = False
    answer = http.get("/ready")
    assert (answer.status_code, answer.json()["engine"], answer.json()["pool"]) == (503, False, True)
    assert http.get("/health").status_code == 200


def test_an_engine_that_does_not_say_whether_it_is_well_is_not(http, engine, monkeypatch):
    async def silent():
        await asyncio.sleep(3600)

    monkeypatch.setattr(operations, "_PATIENCE", 0.01)
    engine.healthy = silent
    assert http.get("/ready").status_code == 503


def test_it_is_not_ready_while_the_pool_cannot_be_read(http, pool):
    pool.close()
    answer = http.get("/ready")
    assert (answer.status_code, answer.json()["pool"]) == (503, False)


def test_it_is_not_ready_after_a_step_could_not_be_stored_until_one_is_or_it_is_time_to_try_again(
    engine, pool, monkeypatch
):
    gate = Gate(8, 1.0)
    meters = Meters(engine, gate)
    app = FastAPI()
    app.include_router(Operations(engine, pool, gate, meters).router())
    with TestClient(app) as http:
        meters.stored_failed()
        answer = http.get("/ready")
        assert (answer.status_code, answer.json()["pool"]) == (503, False)
        meters.stored(make_step("t", 0), cached=0)
        assert http.get("/ready").status_code == 200
        meters.stored_failed()
        assert http.get("/ready").status_code == 503
        monkeypatch.setattr(observe, "_FAILED_SECONDS", 0.0)
        assert http.get("/ready").status_code == 200


def test_it_is_not_ready_while_it_is_paused(http):
    assert http.post("/v1/admin/pause").json()["gate"] == "paused"
    assert (http.get("/ready").status_code, http.get("/ready").json()["gate"]) == (503, "paused")
    assert http.post("/v1/admin/resume").json()["gate"] == "open"
    assert http.get("/ready").status_code == 200


def test_calls_wait_while_it_is_paused_and_are_answered_when_it_goes_on(engine, serve):
    url = serve(engine)
    httpx.post(url + "/v1/admin/pause")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(httpx.post(url + PATH, json=CALL))) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: httpx.get(url + "/v1/admin/status").json()["waiting"] == 3)
    assert (answers, engine.requests) == ([], [])
    httpx.post(url + "/v1/admin/resume")
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 3


def test_a_pause_that_lasts_too_long_is_503_with_a_time_to_come_back(engine, serve):
    url = serve(engine, GatewayConfig(pause_seconds=0.01))
    httpx.post(url + "/v1/admin/pause")
    answer = httpx.post(url + PATH, json=CALL)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "unavailable"


def test_a_drain_waits_for_calls_under_way_and_refuses_new_ones(engine, serve, caplog):
    engine.wait_after = 0
    url = serve(engine)
    answers = []
    call = threading.Thread(target=lambda: answers.append(httpx.post(url + PATH, json=CALL)))
    call.start()
    wait_until(lambda: engine.requests)
    drained = httpx.post(url + "/v1/admin/drain", json={"seconds": 0.01}).json()
    assert (drained["drained"], drained["gate"], drained["running"]) == (False, "draining", 1)
    refused = httpx.post(url + "/v1/messages", json={**CALL, "max_tokens": 4})
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded_error")
    (line,) = [record for record in caplog.records if record.name == "stepwell.gateway.problems"]
    assert (line.levelname, line.exc_info) == ("WARNING", None)  # it is nobody's failure
    engine.go.set()
    assert httpx.post(url + "/v1/admin/drain").json()["drained"] is True
    call.join()
    assert answers[0].status_code == 200
    httpx.post(url + "/v1/admin/resume")
    assert httpx.post(url + PATH, json=CALL).status_code == 200


@pytest.mark.parametrize("body", [{"seconds": 0}, {"seconds": "x"}, {"seconds": 1e9}, [], "{"])
def test_a_drain_needs_a_sensible_time(http, body):
    answer = http.post("/v1/admin/drain", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_calls_over_the_limit_are_429_with_a_time_to_come_back(engine, serve):
    engine.wait_after = 0
    url = serve(engine, GatewayConfig(max_calls=1))
    first = threading.Thread(target=lambda: httpx.post(url + PATH, json=CALL))
    first.start()
    wait_until(lambda: engine.requests)
    refused = httpx.post(url + PATH, json=CALL)
    engine.go.set()
    first.join()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert httpx.post(url + PATH, json=CALL).status_code == 200


@pytest.mark.parametrize("path", [*(d.path for d in DOORS), "/v1/messages/count_tokens", "/tokenize", "/v1/embeddings"])
async def test_a_call_whose_body_has_not_arrived_takes_no_place_from_others(engine, pool, path):
    asked_for_its_body = asyncio.Event()

    async def receive():
        asked_for_its_body.set()
        await asyncio.Event().wait()

    config = GatewayConfig(max_calls=1, embeddings_url="http://127.0.0.1:1")
    app = create_app(engine, engine.renderer, pool, config)
    slow = asyncio.create_task(app(asgi_scope(path), receive, None))
    await asked_for_its_body.wait()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        assert (await http.post(PATH, json=CALL)).status_code == 200
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


def test_a_key_over_its_quota_is_429_in_its_dialects_shape_with_a_time_to_come_back(engine, pool, tmp_path):
    keys = KeyRing.open(tmp_path / "keys.json")
    headers = {"x-api-key": keys.create("slow", ["agent"], calls_per_minute=1)}
    http = TestClient(create_app(engine, engine.renderer, pool, keys=keys))
    body = {**CALL, "max_tokens": 4}
    first, second = (http.post("/v1/messages", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 429)
    assert 50 < int(second.headers["retry-after"]) <= 60
    assert second.json()["error"]["type"] == "rate_limit_error"


def test_clients_that_probe_the_base_url_are_answered(http):
    for base in ("", "/v1", "/t/a", "/t/a/v1"):
        assert http.head(base or "/").status_code == 200
        assert http.get(base + "/api/hello").status_code == 200


@pytest.mark.parametrize("base", ["/v1", "/t/a/v1"])
def test_a_websocket_for_responses_is_answered_426_so_that_the_client_uses_http(engine, serve, base):
    url = serve(engine)
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert httpx.get(f"{url}{base}/responses", headers=upgrade).status_code == 426
