"""Nothing new begins while a consumer has enough; what has begun goes on, and what has happened is always recorded."""

import itertools

import pytest
from starlette.testclient import TestClient

from stepwell.gateway import admission
from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.pool.lease import LeaseSpec
from stepwell.types import Annotation, GroupInfo, Step, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine

_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _counted_at_once(monkeypatch):
    monkeypatch.setattr(admission, "_FRESH", 0.0)


@pytest.fixture
def http(renderer, pool):
    config = GatewayConfig(admission={"consumer": "trainer", "max_backlog": 2})
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool, config)) as client:
        yield client


def make_ready(pool, count=1, channel="default"):
    for number in itertools.islice(_NUMBERS, count):
        group = GroupInfo(task_id="t", size=1, channel=channel)
        info = TrajectoryInfo(id=f"ready-{number}", group_id=group.id)
        pool.put(group, info, Step(trajectory_id=info.id, index=0, prompt_ids=[1], response_ids=[2], logprobs=[-1]))
        pool.put(Annotation.reward("trajectory", info.id, 1.0), Annotation.end(info.id, "terminated"))


def call(http, trajectory=None, text="hello"):
    place = f"/t/{trajectory}" if trajectory else ""
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
    return http.post(f"{place}/v1/chat/completions", json=body)


def begin(http):
    """Each way in which work begins, by name: the answer to it."""
    number = next(_NUMBERS)
    return {
        "call": call(http, text=f"hello {number}"),
        "named call": call(http, f"new-{number}"),
        "group": http.post("/v1/groups", json={"task_id": "t", "size": 2}),
        "trajectory": http.post("/v1/trajectories", json={"id": f"alone-{number}"}),
        "session": http.post("/v1/sessions", json={}),
    }


def statuses(answers):
    return {name: answer.status_code for name, answer in answers.items()}


def test_work_begins_while_the_consumer_has_less_than_the_limit(http, pool):
    make_ready(pool)
    assert set(statuses(begin(http)).values()) == {200}


def test_nothing_begins_once_it_has_enough_and_everybody_is_told_when_to_ask_again(http, pool):
    make_ready(pool, 2)
    answers = begin(http)
    assert set(statuses(answers).values()) == {429}
    assert {answer.headers["retry-after"] for answer in answers.values()} == {"5"}
    assert "'trainer' has 2 group units waiting" in answers["call"].json()["error"]["message"]


def test_the_door_opens_again_when_the_consumer_takes_something(http, pool):
    make_ready(pool, 2)
    lease = pool.lease(LeaseSpec(consumer="trainer"))
    assert set(statuses(begin(http)).values()) == {200}
    pool.release(lease.id)
    assert set(statuses(begin(http)).values()) == {429}
    pool.acknowledge(pool.lease(LeaseSpec(consumer="trainer")).id)
    assert set(statuses(begin(http)).values()) == {200}


def test_what_another_consumer_has_does_not_count(http, pool):
    make_ready(pool, 2)
    pool.acknowledge(pool.lease(LeaseSpec(consumer="another", limit=2)).id)
    assert set(statuses(begin(http)).values()) == {429}


def test_what_has_begun_goes_on(http, pool):
    assert call(http, "early").status_code == 200
    http.post("/v1/groups", json={"id": "open", "task_id": "t", "size": 2})
    session = http.post("/v1/sessions", json={"trajectory_id": "registered"}).json()["trajectory_id"]
    make_ready(pool, 2)
    assert call(http, "early", "and then?").status_code == 200
    assert call(http, session).status_code == 200
    assert http.post("/v1/trajectories", json={"id": "member", "group_id": "open"}).status_code == 200
    assert call(http, "member").status_code == 200


def test_what_has_happened_is_recorded(http, pool):
    http.post("/v1/trajectories", json={"id": "theirs"})
    make_ready(pool, 2)
    step = {"trajectory_id": "theirs", "index": 0, "prompt_ids": [1], "response_ids": [2], "logprobs": [-1.0]}
    assert http.post("/v1/steps", json=step).status_code == 200
    event = {"conversation": "nobody-knows-it", "type": "user_turn", "text": "hello"}
    assert http.post("/v1/events", json=event).status_code == 200


def test_only_its_channel_counts_if_one_is_named(renderer, pool):
    config = GatewayConfig(admission={"consumer": "trainer", "max_backlog": 1, "channel": "mine"})
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool, config)) as http:
        make_ready(pool, 3, channel="another")
        assert set(statuses(begin(http)).values()) == {200}
        make_ready(pool, 1, channel="mine")
        assert set(statuses(begin(http)).values()) == {429}
