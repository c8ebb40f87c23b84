"""The white-box routes, and the pool client that speaks to them."""

import dataclasses
import json

import msgspec
import pytest
from starlette.testclient import TestClient

from stepwell.client.pool import PoolClient
from stepwell.errors import Conflict, InvalidRequest, NotFound, PoolError
from stepwell.gateway.app import create_app
from stepwell.gateway.ingest.views import step_json
from stepwell.gateway.ingest.wire import EndWire, GroupWire, RewardWire, SamplingWire, StepWire, TrajectoryWire
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


@pytest.mark.parametrize("wrap", [False, True])
def test_a_batch_in_msgpack_is_the_same_as_in_json(http, pool, wrap):
    body = {"steps": [STEP]} if wrap else STEP
    headers = {"content-type": "application/msgpack"}
    response = http.post("/v1/steps", content=msgspec.msgpack.encode(body), headers=headers)
    again = http.post("/v1/steps", json=body)
    assert [answer.json()["results"][0]["status"] for answer in (response, again)] == ["stored", "duplicate"]
    assert pool.step("s0").logprobs.tolist() == [-0.5]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(STEP)[:-1],
        msgspec.msgpack.encode(STEP) + b"x",
        b"\x91" * 5000,
        msgspec.msgpack.encode({1: 2}),
        b"\x81\xa2id\xa3\xed\xa0\x80",  # a lone surrogate
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")),
        msgspec.msgpack.encode(float("nan")),
    ],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_no_msgpack_is_400(http, body):
    response = http.post("/v1/steps", content=body, headers={"content-type": "application/x-msgpack; v=1"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["groups", "trajectories", "steps", "rewards", "feedback", "events"])
def test_what_stands_beside_a_list_of_items_is_refused_not_dropped(http, pool, kind):
    response = http.post(f"/v1/{kind}", json={kind: [], "trajectory_id": "t1"})
    assert response.status_code == 400
    assert "'trajectory_id' stands beside" in response.json()["error"]["message"]


def test_log_probabilities_above_zero_are_refused_but_for_rounding(http, pool):
    response = http.post("/v1/steps", json={**STEP, "logprobs": [0.5]})
    assert response.status_code == 400
    assert "at most 0" in response.json()["error"]["message"]
    assert http.post("/v1/steps", json={**STEP, "logprobs": [5e-5]}).status_code == 200
    assert pool.step("s0").logprobs[0] > 0


@pytest.mark.parametrize("ids", ["prompt_ids", "response_ids"])
def test_ids_of_the_served_model_must_be_in_its_vocabulary(http, renderer, ids):
    last = {**STEP, "model": "tiny", ids: [renderer.vocabulary_size - 1]}
    over = {**last, "id": "s1", "index": 1, ids: [renderer.vocabulary_size]}
    assert http.post("/v1/steps", json=last).status_code == 200
    response = http.post("/v1/steps", json=over)
    assert (response.status_code, "vocabulary of 'tiny'" in response.json()["error"]["message"]) == (400, True)
    assert http.post("/v1/steps", json={**over, "model": "theirs"}).status_code == 200


def test_a_session_is_opened_once_and_says_how_to_call_in_it(http, pool):
    order = {"trajectory_id": "run-1", "task_id": "7", "agent": "mine"}
    first, again = (http.post("/v1/sessions", json=order).json() for _ in range(2))
    assert (
        first
        == again
        == {
            "trajectory_id": "run-1",
            "api_key": "sw-run-1",
            "openai_base_url": "http://testserver/t/run-1/v1",
            "anthropic_base_url": "http://testserver/t/run-1",
        }
    )
    assert (pool.trajectory("run-1").info.task_id, pool.trajectory("run-1").info.agent) == ("7", "mine")
    assert http.post("/v1/sessions", json={**order, "task_id": "8"}).status_code == 409
    assert http.post("/v1/sessions", json={}).json()["trajectory_id"].startswith("traj-")


@pytest.mark.parametrize("name", ["a/b", "-a", "a" * 201, "a b", "ä"])
def test_a_session_needs_a_name_that_fits_in_a_url(http, name):
    assert http.post("/v1/sessions", json={"trajectory_id": name}).status_code == 400


def test_a_session_of_a_group_that_is_not_there_is_404(http):
    assert http.post("/v1/sessions", json={"group_id": "nowhere"}).status_code == 404


def test_a_call_goes_on_where_submitted_steps_ended(http, renderer, pool):
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    http.post("/t/t1/v1/chat/completions", json=ask)
    http.post("/v1/steps", json={**STEP, "index": 1})
    assert http.post("/t/t1/v1/chat/completions", json=ask).status_code == 200
    assert [step.index for step in pool.trajectory("t1").steps] == [0, 1, 2]


def test_a_text_that_no_utf8_can_hold_is_read_back_all_the_same(http, pool):
    pool.put(Step(**{**STEP, "request": "\ud800"}))
    assert http.get("/v1/trajectories/t1").json()["steps"][0]["request"] == "\ud800"


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
    said = [
        Annotation.verdict("trajectory", "a", "accept", "fine"),
        Annotation.tag("step", "s-b", "odd"),
        Annotation(target="trajectory", target_id="b", kind="note", name="review", text="look"),
    ]
    records = [group, *trajectories, *steps, *notes, *ends, *said]
    receipts = remote.append(records).result(timeout=20)
    again = remote.append(records).result(timeout=20)
    assert [receipt.id for receipt in receipts] == [record.id for record in records]
    assert all(receipt.error is None and receipt.cursor is not None for receipt in receipts)
    assert all(receipt.duplicate for receipt in again)
    stored = pool.group("g")
    assert [t.steps[0] for t in stored.trajectories] == steps
    assert [(t.status, t.reward) for t in stored.trajectories] == [("terminated", 1.0), ("truncated", 0.5)]
    assert [(t.verdict, t.tags) for t in stored.trajectories] == [("accept", ()), ("clear", ("odd",))]
    assert [pool.notes(name)[-1] for name in ("a", "b")] == [said[0], said[2]]
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


def test_the_tree_of_a_group_says_what_merging_saves_and_how_its_rows_hang_together(http, pool):
    pool.put(GroupInfo(id="g", task_id="t", size=2), TrajectoryInfo(id="a", group_id="g"), TrajectoryInfo(id="b"))
    grown = {"prompt_ids": [1, 2, 3, 4], "response_ids": [9], "index": 1, "logprobs": [-1]}
    sibling = {"prompt_ids": [1, 2], "response_ids": [5, 6], "index": 2, "logprobs": [-1, -1]}
    title = {"prompt_ids": [7], "response_ids": [8], "index": 3, "logprobs": [-1], "side": "title"}
    pool.put(*(Step(**{**STEP, "id": f"a{i}", "trajectory_id": "a", **more}) for i, more in enumerate(({}, grown))))
    pool.put(*(Step(**{**more, "id": f"a-{more['index']}", "trajectory_id": "a"}) for more in (sibling, title)))
    assert http.get("/v1/groups/g/tree").json() == {
        "rows": 3,
        "flat_tokens": 3 + 5 + 4,
        "tokens": 7,
        "ratio": pytest.approx(7 / 12),
        "segments": [
            {"start": 0, "stop": 2, "end": 7, "depth": 0, "parent": -1, "rows": 3},
            {"start": 2, "stop": 4, "end": 4, "depth": 2, "parent": 0, "rows": 1},
            {"start": 4, "stop": 7, "end": 7, "depth": 2, "parent": 0, "rows": 2},
        ],
    }
    for query, tokens in (("tree=off", 12), ("budget=5", 9), ("budget=5&tree=on", 9)):
        answer = http.get(f"/v1/groups/g/tree?{query}").json()
        assert (answer["tokens"], len(answer["segments"])) == (tokens, 3)
    assert http.get("/v1/groups/nowhere/tree").status_code == 404
    assert http.get("/v1/groups/g/tree?budget=0").status_code == 400
    assert http.get("/v1/groups/g/tree?tree=perhaps").status_code == 400
