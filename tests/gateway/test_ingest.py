"""The white-box routes, and the pool client that speaks to them."""

import dataclasses
import json

import pytest
from starlette.testclient import TestClient

from stepwell.errors import Conflict, InvalidRequest, NotFound, PoolError
from stepwell.gateway.app import create_app
from stepwell.gateway.wire import EndWire, GroupWire, RewardWire, SamplingWire, StepWire, TrajectoryWire, step_json
from stepwell.pool.client import PoolClient
from stepwell.types import Annotation, GroupInfo, Sampling, Step, TrajectoryInfo, UpdateInfo
from tests.fakes.engines import ScriptedEngine

STEP = {"id": "s0", "trajectory_id": "t1", "index": 0, "prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-0.5]}


@pytest.fixture
def http(renderer, pool):
    pool.put(TrajectoryInfo(id="t1"))
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool)) as client:
        yield client


@pytest.mark.parametrize(
    ("wire", "record"),
    [(SamplingWire, Sampling), (StepWire, Step), (GroupWire, GroupInfo), (TrajectoryWire, TrajectoryInfo)],
)
def test_a_wire_model_lists_exactly_the_fields_of_its_record(wire, record):
    assert list(wire.model_fields) == [field.name for field in dataclasses.fields(record)]


def test_the_wire_models_of_annotations_cover_every_field_of_an_annotation():
    derived = {"target", "target_id", "kind"}  # said by the route and by which id is given
    fields = {field.name for field in dataclasses.fields(Annotation)} - derived
    assert set(RewardWire.model_fields) == fields | {"trajectory_id", "step_id"}
    assert set(EndWire.model_fields) == fields - {"name", "value"} | {"how"}


def test_a_step_survives_its_json():
    step = Step(**STEP, sampling=Sampling(temperature=0.5, seed=3), request="{}", latency=0.25)
    assert StepWire.model_validate(step_json(step)).record() == step


def test_a_step_is_stored_and_the_same_again_is_a_duplicate(http, pool):
    body = {**STEP, "created_at": 1.0}
    first, second = (http.post("/v1/steps", json=body) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 200)
    assert [answer.json()["results"][0]["status"] for answer in (first, second)] == ["stored", "duplicate"]
    assert pool.step("s0") == Step(**body)


def test_each_step_of_a_list_gets_its_own_verdict_in_order(http, pool):
    bad = {**STEP, "id": "s1", "index": 1, "logprobs": []}
    stray = {**STEP, "id": "s2", "trajectory_id": "nowhere"}
    response = http.post("/v1/steps", json={"steps": [bad, STEP, stray, 7]})
    results = response.json()["results"]
    assert response.status_code == 207
    assert [(result["id"], result["status"]) for result in results] == [
        ("s1", "refused"),
        ("s0", "stored"),
        ("s2", "refused"),
        ("", "refused"),
    ]
    assert results[0]["error"]["code"] == "invalid_record"
    assert "one log-probability" in results[0]["error"]["message"]
    assert results[2]["error"]["code"] == "not_found"
    assert pool.stats().steps == 1


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"logprobs": []}, 400),
        ({"prompt_ids": []}, 400),
        ({"prompt_ids": [-1]}, 400),
        ({"prompt_ids": [2**40]}, 400),
        ({"prompt_ids": [2**70]}, 400),
        ({"prompt_ids": ["x"]}, 400),
        ({"log_probs": [1.0]}, 400),
        ({"index": -1}, 400),
        ({"id": "a/b"}, 400),
        ({"sampling": {"temperature": -1}}, 400),
        ({"sampling": None}, 400),
        ({"finish_reason": "bored"}, 400),
        ({"trajectory_id": "nowhere"}, 404),
    ],
    ids=str,
)
def test_a_single_step_that_is_refused_is_an_error(http, change, status):
    response = http.post("/v1/steps", json={**STEP, **change})
    assert response.status_code == status
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("value", ["NaN", '"NaN"', "Infinity", "1e999"])
def test_nan_is_refused_clearly(http, value):
    body = json.dumps({**STEP, "logprobs": ["VALUE"]}).replace('"VALUE"', value)
    response = http.post("/v1/steps", content=body)
    assert response.status_code == 400
    assert "NaN or infinity" in response.json()["error"]["message"]
    assert http.post("/v1/rewards", content=f'{{"trajectory_id":"t1","value":{value}}}').status_code == 400


def test_a_whole_life_of_a_trajectory_can_be_sent_and_read_back(http):
    http.post("/v1/groups", json={"id": "g", "task_id": "task", "size": 1})
    http.post("/v1/trajectories", json={"id": "t2", "group_id": "g", "agent": "mine"})
    http.post("/v1/steps", json={**STEP, "trajectory_id": "t2"})
    http.post("/v1/rewards", json={"step_id": "s0", "value": 0.25, "name": "format"})
    http.post("/v1/rewards", json={"trajectory_id": "t2", "value": 1})
    assert http.post("/v1/trajectories/t2/end", json={"how": "terminated"}).status_code == 200
    stored = http.get("/v1/trajectories/t2").json()
    assert (stored["status"], stored["reward"], stored["info"]["agent"]) == ("terminated", 1.25, "mine")
    assert stored["reward_parts"] == {"format": 0.25, "reward": 1.0}
    assert (stored["steps"][0]["prompt_ids"], stored["steps"][0]["logprobs"]) == ([1, 2], [-0.5])
    stats = http.get("/v1/stats").json()
    assert (stats["groups_ready"], stats["steps"]) == (1, 1)
    assert stats["trajectories_by_status"]["terminated"] == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/rewards", {"value": 1}, 400),
        ("/v1/rewards", {"value": 1, "step_id": "s", "trajectory_id": "t1"}, 400),
        ("/v1/rewards", {"value": 1, "step_id": "nowhere"}, 404),
        ("/v1/rewards", {"trajectory_id": "t1", "value": None}, 400),
        ("/v1/trajectories/t1/end", {"how": "bored"}, 400),
        ("/v1/trajectories/t1/end", [], 400),
        ("/v1/trajectories/nowhere/end", {"how": "failed"}, 404),
        ("/v1/trajectories", {"group_id": "nowhere"}, 404),
        ("/v1/groups", {"task_id": "x", "size": 0}, 400),
        ("/v1/steps", {"steps": 3}, 400),
        ("/v1/steps", None, 400),
    ],
)
def test_wrong_facts_are_refused(http, path, body, status):
    assert http.post(path, json=body).status_code == status


def test_a_trajectory_that_is_not_there_is_404_and_health_is_there(http):
    assert http.get("/v1/trajectories/nowhere").json()["error"]["code"] == "not_found"
    assert http.get("/health").json() == {"status": "ok", "model": "tiny", "policy_version": 3}


def test_an_empty_list_is_stored_trivially(http):
    assert http.post("/v1/steps", json={"steps": []}).json() == {"results": []}


def test_the_pool_client_stores_records_of_all_kinds_as_the_pool_itself_would(renderer, serve, pool):
    remote = PoolClient(serve(ScriptedEngine(renderer)))
    group = GroupInfo(id="g", task_id="task", size=1)
    trajectories = [TrajectoryInfo(id=name, group_id="g") for name in ("a", "b")]
    steps = [Step(**{**STEP, "id": f"s-{t.id}", "trajectory_id": t.id}) for t in trajectories]
    notes = [Annotation.reward("trajectory", "a", 1.0), Annotation.reward("step", "s-b", 0.5, "part")]
    ends = [Annotation.end("a", "terminated"), Annotation.end("b", "truncated", "limit")]
    records = [group, *trajectories, *steps, *notes, *ends]
    receipts = remote.append(records).result(timeout=20)
    again = remote.append(records).result(timeout=20)
    assert [receipt.id for receipt in receipts] == [record.id for record in records]
    assert all(receipt.error is None and receipt.cursor is not None for receipt in receipts)
    assert all(receipt.duplicate for receipt in again)
    stored = pool.group("g")
    assert [t.steps[0] for t in stored.trajectories] == steps
    assert [(t.status, t.reward) for t in stored.trajectories] == [("terminated", 1.0), ("truncated", 0.5)]
    remote.close()


def test_the_pool_client_reports_refusals_with_their_own_class(renderer, serve, pool):
    remote = PoolClient(serve(ScriptedEngine(renderer)))
    pool.put(TrajectoryInfo(id="t1"), Step(**STEP))
    other = Step(**{**STEP, "response_ids": [4]})
    fine = Step(**{**STEP, "id": "s1", "index": 1})
    refused, stored = remote.append([other, fine]).result(timeout=20)
    assert isinstance(refused.error, Conflict)
    assert (stored.error, stored.id) == (None, "s1")
    with pytest.raises(NotFound):
        remote.put(Annotation.end("nowhere", "failed"))
    with pytest.raises(InvalidRequest, match="UpdateInfo"):
        remote.put(UpdateInfo(run="r", policy_version=1))
    remote.close()


def test_the_pool_client_reports_a_gateway_that_is_not_there():
    remote = PoolClient("http://127.0.0.1:9")
    with pytest.raises(PoolError, match="does not answer"):
        remote.put(TrajectoryInfo(id="t1"))
    remote.close()
