"""Feedback on answers of every dialect, and the turns of a live product."""

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from stepwell.gateway.app import create_app
from stepwell.gateway.callers import trajectory_of_session
from stepwell.gateway.config import GatewayConfig
from stepwell.types import Annotation
from tests.fakes.engines import ScriptedEngine

USER = [{"role": "user", "content": "hello"}]
CALLS = {
    "chat/completions": {"messages": USER},
    "completions": {"prompt": "hello"},
    "responses": {"input": "hello"},
    "messages": {"messages": USER, "max_tokens": 9},
}


@pytest.fixture
def http(renderer, pool):
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool)) as client:
        yield client


def say(http, kind="feedback", **item):
    return http.post(f"/v1/{kind}", json=item)


def ask(http, path="chat/completions", trajectory="t1"):
    return http.post(f"/t/{trajectory}/v1/{path}", json={"model": "tiny", **CALLS[path]})


def told(pool, trajectory="t1"):
    notes = pool.trajectory(trajectory).annotations
    return [(note.target, note.target_id, note.kind, note.name, note.value, note.text) for note in notes]


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("stream", [False, True])
def test_feedback_finds_its_step_by_the_id_that_each_dialect_gave_the_answer(http, pool, path, stream):
    body = {"model": "tiny", "stream": stream, **CALLS[path]}
    answer = http.post(f"/t/t1/v1/{path}", json=body)
    step_id = answer.headers["x-stepwell-step"]
    response_id = next(
        prefix + step_id for prefix in ("chatcmpl-", "cmpl-", "resp_", "msg_") if prefix + step_id in answer.text
    )
    assert say(http, response_id=response_id, thumbs="up").status_code == 200
    assert told(pool) == [("step", step_id, "feedback", "thumbs", 1.0, "")]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"thumbs": "up"}, ("thumbs", 1.0, "")),
        ({"thumbs": "down", "comment": "wrong"}, ("thumbs", -1.0, "wrong")),
        ({"score": 0.25}, ("score", 0.25, "")),
        ({"score": 0, "comment": "meh"}, ("score", 0.0, "meh")),
        ({"edit": "better"}, ("edit", None, "better")),
        ({"comment": "hm"}, ("comment", None, "hm")),
    ],
    ids=str,
)
def test_every_statement_is_stored_as_what_it_is(http, pool, given, stored):
    step_id = ask(http).headers["x-stepwell-step"]
    assert say(http, step_id=step_id, **given).json()["results"][0]["status"] == "stored"
    assert told(pool) == [("step", step_id, "feedback", *stored)]
    assert pool.trajectory("t1").reward is None


def test_feedback_on_a_conversation_is_about_the_trajectory_but_an_edit_about_its_last_answer(http, pool):
    last = [ask(http).headers["x-stepwell-step"] for _ in range(2)][-1]
    for item in ({"score": 3}, {"edit": "better"}):
        assert say(http, conversation="t1", **item).status_code == 200
    assert [note[:2] for note in told(pool)] == [("trajectory", "t1"), ("step", last)]


def test_a_conversation_may_be_called_what_its_client_calls_it(http, pool):
    name = "agent:main/ü 1"
    body = {"model": "tiny", "messages": USER}
    answer = http.post("/v1/chat/completions", json=body, headers={"x-openclaw-session-key": "agent:main/u 1"})
    say(http, conversation="agent:main/u 1", thumbs="up")
    assert len(told(pool, answer.headers["x-stepwell-trajectory"])) == 1
    assert say(http, conversation=name, thumbs="up").status_code == 404


def test_thumbs_and_scores_are_a_reward_part_if_the_caller_says_so_and_the_newest_holds(http, pool):
    step_id = ask(http).headers["x-stepwell-step"]
    say(http, step_id=step_id, thumbs="down", reward=True)
    say(http, step_id=step_id, score=0.5, reward=True, comment="after all")
    stored = pool.trajectory("t1")
    assert (stored.reward_parts, stored.step_rewards) == ((("feedback", 0.5),), (0.5,))
    assert [note.name for note in stored.annotations] == ["thumbs", "score"]


def test_the_same_feedback_twice_is_one_and_another_under_its_id_is_a_conflict(http, pool):
    step_id = ask(http).headers["x-stepwell-step"]
    item = {"id": "f1", "step_id": step_id, "score": 1, "reward": True}
    answers = [say(http, **item), say(http, **item), say(http, **{**item, "score": 2})]
    assert [answer.status_code for answer in answers] == [200, 200, 409]
    assert [answer.json()["results"][0]["status"] for answer in answers[:2]] == ["stored", "duplicate"]
    assert (len(told(pool)), pool.trajectory("t1").reward) == (1, 1.0)


@pytest.mark.parametrize(
    ("item", "status"),
    [
        ({"thumbs": "up"}, 400),
        ({"step_id": "s", "conversation": "t1", "thumbs": "up"}, 400),
        ({"conversation": "t1"}, 400),
        ({"conversation": "t1", "thumbs": "up", "score": 1}, 400),
        ({"conversation": "t1", "edit": "x", "comment": "y"}, 400),
        ({"conversation": "t1", "edit": ""}, 400),
        ({"conversation": "t1", "thumbs": "sideways"}, 400),
        ({"conversation": "t1", "score": "NaN"}, 400),
        ({"conversation": "t1", "score": 1e31}, 400),
        ({"conversation": "t1", "comment": "x", "reward": True}, 400),
        ({"conversation": "t1", "comment": "\u0000"}, 400),
        ({"conversation": "empty", "edit": "x"}, 404),
        ({"conversation": "nowhere", "thumbs": "up"}, 404),
        ({"response_id": "chatcmpl-nowhere", "thumbs": "up"}, 404),
        ({"step_id": "nowhere", "thumbs": "up"}, 404),
    ],
    ids=str,
)
def test_feedback_that_says_too_little_or_too_much_is_refused_and_stores_nothing(http, pool, item, status):
    ask(http)
    http.post("/v1/trajectories", json={"id": "empty"})
    assert say(http, **item).status_code == status
    assert told(pool) == []


def test_the_turns_of_an_unknown_conversation_open_it_and_a_batch_has_a_verdict_each(http, pool):
    turns = [
        {"id": "e1", "conversation": "chat/7", "type": "user_turn", "text": "Where is it?", "created_at": 5},
        {"id": "e2", "conversation": "chat/7", "type": "assistant_turn", "text": "On its way."},
        {"id": "e3", "conversation": "chat/7", "kind": "typo"},
        {"id": "e4", "type": "system"},
    ]
    first = http.post("/v1/events", json={"events": turns})
    again = http.post("/v1/events", json={"events": turns[:2]})
    name = trajectory_of_session("chat/7")
    assert [(v["id"], v["status"]) for v in first.json()["results"]] == [
        ("e1", "stored"),
        ("e2", "stored"),
        ("e3", "refused"),
        ("e4", "refused"),
    ]
    assert (first.status_code, again.status_code) == (207, 200)
    assert [v["status"] for v in again.json()["results"]] == ["duplicate", "duplicate"]
    assert pool.trajectory(name).info.source == "events"
    assert [note[3:] for note in told(pool, name)] == [
        ("user_turn", None, "Where is it?"),
        ("assistant_turn", None, "On its way."),
    ]
    assert pool.trajectory(name).annotations[0].created_at == 5.0


def test_events_join_the_trajectory_that_calls_of_the_conversation_made_and_the_other_way_round(http, pool):
    ask(http, trajectory="c1")
    say(http, "events", conversation="c1", type="user_turn")
    say(http, "events", conversation="c2", type="user_turn")
    assert ask(http, trajectory="c2").status_code == 200
    assert ask(http, trajectory="c1").status_code == 200
    assert [(len(t.steps), len(t.annotations), t.info.source) for t in map(pool.trajectory, ("c1", "c2"))] == [
        (2, 1, "gateway"),
        (1, 1, "events"),
    ]


def test_an_event_about_an_answer_belongs_to_its_step(http, pool):
    answer = ask(http)
    say(http, "events", conversation="elsewhere", response_id=answer.json()["id"], type="copied")
    assert told(pool) == [("step", answer.headers["x-stepwell-step"], "event", "copied", None, "")]
    assert pool.stats().trajectories == 1
    assert say(http, "events", response_id="resp_nowhere", type="copied").status_code == 404


def test_a_conversation_whose_name_no_pool_can_hold_is_refused(http):
    assert say(http, "events", conversation="x", type="a/b").status_code == 400
    assert say(http, "events", conversation="x", type="user_turn", text="\u0000").status_code == 400


def test_feedback_and_events_are_read_back_with_their_trajectory_and_change_neither_status_nor_reward(http, pool):
    step_id = ask(http).headers["x-stepwell-step"]
    say(http, id="f", step_id=step_id, thumbs="up", created_at=1)
    say(http, "events", id="e", conversation="t1", type="user_turn", text="hi", created_at=2)
    stored = http.get("/v1/trajectories/t1").json()
    thumbs = Annotation(id="f", target="step", target_id=step_id, kind="feedback", name="thumbs", value=1, created_at=1)
    turn = Annotation(
        id="e", target="trajectory", target_id="t1", kind="event", name="user_turn", text="hi", created_at=2
    )
    assert [Annotation(**shape) for shape in stored["annotations"]] == [thumbs, turn]
    assert (stored["status"], stored["reward"]) == ("open", None)


def test_a_rule_makes_feedback_a_reward_at_once_and_the_word_of_the_rule_comes_before_that_of_the_feedback(
    renderer, pool
):
    rule = {"thumbs_down": -2.0, "score_range": (1, 5), "reward_range": (0, 1), "edit": -1.0}
    config = GatewayConfig(feedback_reward=rule)
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool, config)) as http:
        step_id = ask(http).headers["x-stepwell-step"]
        rewards = []
        for item in (
            {"thumbs": "down"},
            {"score": 4},
            {"score": 9, "reward": True},
            {"edit": "better"},
            {"comment": "hm"},
        ):
            assert say(http, step_id=step_id, **item).json()["results"][0]["status"] == "stored"
            rewards.append(pool.trajectory("t1").reward)
    assert rewards == [-2.0, 0.75, 1.0, -1.0, -1.0]
    assert pool.trajectory("t1").reward_parts == (("feedback", -1.0),)
    assert [note[3] for note in told(pool)] == ["thumbs", "score", "score", "edit", "comment"]


def test_what_the_rule_has_nothing_to_say_of_may_still_say_itself_that_it_is_a_reward(renderer, pool):
    config = GatewayConfig(feedback_reward={"thumbs_up": None})
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool, config)) as http:
        ask(http)
        say(http, conversation="t1", thumbs="up")
        assert pool.trajectory("t1").reward is None
        say(http, conversation="t1", thumbs="up", reward=True)
        assert pool.trajectory("t1").reward == 1.0


def test_feedback_that_is_sent_again_is_a_no_op_although_the_rule_has_changed_meanwhile(renderer, pool):
    first = {"conversation": "t1", "id": "f1", "thumbs": "down"}
    chosen = {"conversation": "t1", "id": "f2", "thumbs": "up", "reward": True}
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool)) as http:
        ask(http)
        assert [say(http, **item).status_code for item in (first, chosen)] == [200, 200]
    before = pool.trajectory("t1").reward
    config = GatewayConfig(feedback_reward={"thumbs_down": -0.5, "thumbs_up": 0.25})
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool, config)) as http:
        for item in (first, chosen):
            assert say(http, **item).json()["results"][0]["status"] == "duplicate"
    assert pool.trajectory("t1").reward == before == 1.0


@pytest.mark.parametrize(
    "rule", [{"reward_range": [float("nan"), 1]}, {"thumbs_up": 1e300}, {"score_range": [0, float("inf")]}]
)
def test_a_rule_that_could_only_be_refused_later_is_refused_at_once(rule):
    with pytest.raises(ValidationError):
        GatewayConfig(feedback_reward=rule)
