"""The routes of those who consume and curate."""

import json
import queue
import socket
import threading
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from stepwell.cli.serving import served
from stepwell.curation.selection import Selection
from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.pool.arrays import from_msgpack
from stepwell.pool.arrow import from_arrow
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.schema import leases
from stepwell.types import GroupInfo, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.servers import wait_until
from tests.pool.builders import ready_group


@pytest.fixture
def http(renderer, pool):
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool)) as client:
        yield client


def test_a_lease_in_json_is_held_until_it_is_acknowledged(http, pool):
    pool.put(*ready_group("g"))
    answer = http.post("/v1/leases", json={"consumer": "c"})
    shape = answer.json()
    assert answer.headers["x-stepwell-lease"] == shape["id"]
    assert float(answer.headers["x-stepwell-expires-at"]) == shape["expires_at"]
    assert [group["info"]["id"] for group in shape["groups"]] == ["g"]
    (step,) = shape["groups"][0]["trajectories"][0]["steps"]
    assert (step["prompt_ids"], step["response_ids"], step["logprobs"]) == ([1, 2], [7, 8], [-0.5, -0.25])
    assert http.post("/v1/leases", json={"consumer": "c"}).json()["groups"] == []
    assert http.post(f"/v1/leases/{shape['id']}/extend", json={"seconds": 5}).json()["expires_at"] > 0
    assert http.post(f"/v1/leases/{shape['id']}/ack").json() == {"ok": True}
    assert http.post(f"/v1/leases/{shape['id']}/extend", json={}).status_code == 409
    (own,) = http.get("/v1/consumption").json()["data"]
    assert (own["consumer"], own["acknowledged"], own["steps"]) == ("c", 1, 2)


@pytest.mark.parametrize(
    ("accept", "read"), [("application/msgpack", from_msgpack), ("application/vnd.apache.arrow.stream", from_arrow)]
)
def test_a_lease_comes_as_arrays_if_asked_and_a_nack_gives_it_back(http, pool, accept, read):
    pool.put(*ready_group("g"))
    for _ in range(2):
        answer = http.post("/v1/leases", json={"consumer": "c"}, headers={"accept": accept})
        assert answer.headers["content-type"] == accept
        arrays = read(answer.content)
        assert arrays.token_ids.tolist() == [1, 2, 7, 8] * 2
        http.post(f"/v1/leases/{answer.headers['x-stepwell-lease']}/nack")


def test_a_lease_waits_for_what_comes(http, pool):
    timer = threading.Timer(0.3, lambda: pool.put(*ready_group("g")))
    timer.start()
    assert len(http.post("/v1/leases", json={"consumer": "c", "wait": 30}).json()["groups"]) == 1
    timer.join()


def test_what_a_client_that_left_would_have_got_is_given_back(serve, renderer, pool):
    url = urlsplit(serve(ScriptedEngine(renderer)))
    body = json.dumps({"consumer": "c", "wait": 30, "seconds": 3600}).encode()
    with socket.create_connection((url.hostname, url.port)) as client:
        client.sendall(b"POST /v1/leases HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: bool(rows(pool)))  # it is waiting
    pool.put(*ready_group("g"))
    wait_until(lambda: bool(pool.lease(LeaseSpec(consumer="c")).groups))


def rows(pool):
    """Leases that were made, empty ones too."""
    return pool._read(lambda connection: connection.execute(sa.select(leases)).all())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "consumer"),
        ({"consumer": "c", "limit": 0}, "limit"),
        ({"consumer": "c", "oder": "fifo"}, "oder"),
        ({"consumer": "c", "selection": {"rules": [{"use": "nonsense"}]}}, "selection"),
        ([], "body"),
        ({"consumer": "c", "epoch": 2**70}, "epoch"),
        ({"consumer": "c", "selection": {"max_policy_version": 2**70}}, "max_policy_version"),
        ({"consumer": "c", "selection": {"tags": ["x"] * 3000}}, "tags"),
        ({"consumer": "c", "selection": {"trajectory_ids": ["x"] * 10_001}}, "trajectory_ids"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_lease_that_makes_no_sense_is_refused(http, body, says):
    answer = http.post("/v1/leases", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_unknown_leases_selections_and_datasets_are_not_found(http):
    assert http.post("/v1/leases/nowhere/ack").status_code == 404
    assert http.get("/v1/selections/nowhere").status_code == 404
    assert http.post("/v1/leases", json={"consumer": "c", "dataset": "nowhere"}).status_code == 404


def test_trajectories_and_groups_are_paged_and_selected(http, pool):
    pool.put(*(TrajectoryInfo(id=f"t{number}", agent="a") for number in range(3)), TrajectoryInfo(id="other"))
    pool.put(GroupInfo(id="g", task_id="x", size=2))
    first = http.get("/v1/trajectories", params={"where": "agents=a", "limit": 2}).json()
    assert [line["info"]["id"] for line in first["data"]] == ["t2", "t1"]
    rest = http.get("/v1/trajectories", params={"where": "agents=a", "limit": 2, "before": first["next"]}).json()
    assert ([line["info"]["id"] for line in rest["data"]], rest["next"]) == (["t0"], None)
    assert http.get("/v1/trajectories", params={"where": "min_reward=high"}).status_code == 400
    (group,) = http.get("/v1/groups").json()["data"]
    assert (group["info"]["id"], group["state"]) == ("g", "open")
    (refill,) = http.get("/v1/refills").json()["data"]
    assert (refill["group_id"], refill["missing"]) == ("g", 2)


def test_the_log_is_read_page_by_page(http, pool):
    records = ready_group("g", size=1)
    pool.put(*records)
    page = http.get("/v1/log", params={"limit": 3}).json()
    assert [line["kind"] for line in page["data"]] == ["group", "trajectory", "step"]
    rest = http.get("/v1/log", params={"after": page["next"], "limit": 3}).json()
    assert [line["record"]["id"] for line in rest["data"]] == [record.id for record in records[3:]]


def test_the_tail_resumes_behind_the_last_event(serve, renderer, pool):
    pool.put(*ready_group("g", size=1))
    url = serve(ScriptedEngine(renderer))
    with httpx.stream("GET", f"{url}/v1/log/tail", headers={"last-event-id": "2"}, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == "id: 3"
        assert json.loads(next(lines).removeprefix("data: "))["kind"] == "step"
        pool.put(TrajectoryInfo(id="later"))
        assert any(line == "id: 6" for line in lines)


def test_curation_over_http_changes_what_is_handed_over(http, pool):
    pool.put(*ready_group("a", size=1), *ready_group("b", size=1))
    assert (
        http.post("/v1/curation", json={"trajectory_id": "a-0", "kind": "verdict", "name": "reject"}).status_code == 200
    )
    for trajectory_id, kind, name, status in (
        ("a-0", "verdict", "reject", 200),
        ("b-0", "tag", "good", 200),
        ("b-0", "verdict", "maybe", 400),
    ):
        said = {"trajectory_id": trajectory_id, "kind": kind, "name": name}
        assert http.post("/v1/curation", json=said).status_code == status
    assert http.put("/v1/selections/good", json={"tags": ["good"]}).status_code == 200
    assert http.get("/v1/selections/good").json()["tags"] == ["good"]
    made = http.post("/v1/datasets", json={"name": "d", "selection": "good"}).json()
    assert (made["name"], made["version"], made["manifest"]["trajectories"]) == ("d", 1, 1)
    assert [one["digest"] for one in http.get("/v1/datasets").json()["data"]] == [made["digest"]]
    for wish in ({"selection": "good"}, {"dataset": "d", "epoch": 1}):
        groups = http.post("/v1/leases", json={"consumer": "c", "limit": 9, **wish}).json()["groups"]
        assert [group["info"]["id"] for group in groups] == ["b"]


def test_a_consumer_that_waits_for_producers_that_are_gone_is_told(renderer, pool):
    http = TestClient(create_app(ScriptedEngine(renderer), renderer, pool))  # not started, so no producer itself
    http.post("/v1/producers/rollout", json={"seconds": 0.001})
    answer = http.post("/v1/leases", json={"consumer": "c", "wait": 30})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_producer")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_condition_that_no_number_meets_is_refused_instead_of_forgotten(http, number):
    saved = http.put("/v1/selections/x", content=f'{{"min_reward": {number}}}')
    leased = http.post("/v1/leases", content=f'{{"consumer": "c", "selection": {{"min_reward": {number}}}}}')
    assert (saved.status_code, leased.status_code) == (400, 400)
    assert "min_reward" in saved.json()["error"]["message"]
    assert http.get("/v1/selections").json()["data"] == []


def test_a_version_that_no_database_can_hold_is_not_found(http):
    body = {"consumer": "c", "dataset": "train@99999999999999999999999999"}
    assert http.post("/v1/leases", json=body).status_code == 404


def test_a_listing_takes_a_saved_selection_or_one_as_json(http, pool):
    pool.put(TrajectoryInfo(id="mine", agent="a"), TrajectoryInfo(id="other"))
    pool.save_selection("mine", Selection(agents=("a",)))
    for selection in ("mine", '{"agents": ["a"]}'):
        page = http.get("/v1/trajectories", params={"selection": selection}).json()["data"]
        assert [line["info"]["id"] for line in page] == ["mine"]
    assert http.get("/v1/trajectories", params={"selection": "nowhere"}).status_code == 404
    assert http.get("/v1/trajectories", params={"selection": '{"agent": "a"}'}).status_code == 400
    assert http.get("/v1/trajectories", params={"selection": "mine", "where": "agents=a"}).status_code == 400


def test_the_reason_why_a_lease_is_given_back_is_logged_and_may_be_left_out(http, pool, caplog):
    pool.put(*ready_group("g"))
    for said in ({}, {"json": {"reason": "too\nbig"}}):
        lease = http.post("/v1/leases", json={"consumer": "c"}).json()
        assert len(lease["groups"]) == 1
        assert http.post(f"/v1/leases/{lease['id']}/nack", **said).status_code == 200
    assert [record.getMessage() for record in caplog.records if "given back" in record.getMessage()] == [
        f"lease {lease['id']} was given back: 'too\\nbig'"
    ]


def test_all_that_a_consumer_holds_is_given_back_at_once(http, pool):
    pool.put(*ready_group("a"), *ready_group("b"))
    for consumer in ("c", "c", "other"):
        http.post("/v1/leases", json={"consumer": consumer})
    assert http.post("/v1/leases/nack", json={"consumer": "c"}).json() == {"released": 2}
    assert {own["consumer"]: own["held"] for own in http.get("/v1/consumption").json()["data"]} == {"other": 1}


@pytest.mark.parametrize("what", ["lease", "tail"])
def test_nobody_who_only_waits_keeps_a_server_from_its_end(renderer, pool, what, monkeypatch):
    app = create_app(ScriptedEngine(renderer), renderer, pool, GatewayConfig(lease_wait_seconds=600))
    answers, asked = queue.SimpleQueue(), threading.Event()
    read = pool.lease if what == "lease" else pool.log
    monkeypatch.setattr(pool, what if what == "lease" else "log", lambda *a, **k: (asked.set(), read(*a, **k))[1])

    def wait(url):
        if what == "lease":
            answers.put(httpx.post(f"{url}/v1/leases", json={"consumer": "c", "wait": 600}, timeout=100))
        else:
            answers.put(httpx.get(f"{url}/v1/log/tail", timeout=100))

    with served(app, drain_seconds=60) as url:
        waiting = threading.Thread(target=wait, args=(url,))
        waiting.start()
        asked.wait(20)
    waiting.join()
    answer = answers.get()
    assert answer.status_code == 200
    assert what == "tail" or answer.json()["groups"] == []
