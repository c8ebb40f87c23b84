"""Weights by `POST /v1/admin/weights`: a real engine over a real, tiny model, behind a real server."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepwell.engines.base import Weights
from stepwell.engines.local import LocalEngine
from stepwell.gateway.app import create_app
from stepwell.policy.model import Policy
from stepwell.pool.store import SQLitePool
from stepwell.rendering.renderer import Renderer
from tests.fakes.engines import ScriptedEngine
from tests.fakes.servers import serving, wait_until
from tests.fakes.weights import saved
from tests.gateway.doors import CHAT
from tests.policy.tiny import tiny_policy

CONTEXT = 1024


def policy_of(renderer: Renderer, seed: int, **more) -> Policy:
    return tiny_policy(seed=seed, vocab_size=renderer.vocabulary_size, max_position_embeddings=CONTEXT, **more)


@dataclass(frozen=True)
class Stage:
    http: httpx.Client
    renderer: Renderer
    folder: Path
    policy: Policy

    def publish(self, weights: Weights) -> httpx.Response:
        order: dict[str, Any] = {"version": weights.version, "folder": str(weights.folder)}
        order |= {"prompt_ids": weights.prompt_ids.tolist(), "token": weights.token, "logprob": weights.logprob}
        return self.http.post("/v1/admin/weights", json=order)

    def weights(self, version: int, **more) -> Weights:
        return saved(policy_of(self.renderer, seed=version, **more), self.folder, version)

    def call(self, tokens: int = 4) -> httpx.Response:
        return self.http.post(CHAT.path, json=CHAT.good | {"max_tokens": tokens})

    def state(self) -> dict[str, Any]:
        return self.http.get("/v1/admin/status").json()


@pytest.fixture
def stage(renderer: Renderer, pool: SQLitePool, tmp_path: Path) -> Iterator[Stage]:
    policy = policy_of(renderer, seed=0)
    engine = LocalEngine(policy, eos_ids=[])
    with serving(create_app(engine, renderer, pool)) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield Stage(http, renderer, tmp_path / "weights", policy)
    engine.close()


def test_good_weights_are_served_and_the_difference_is_told(stage: Stage) -> None:
    answer = stage.publish(stage.weights(3))
    assert answer.status_code == 200
    assert answer.json()["policy_version"] == 3
    assert answer.json()["difference"] < 1e-4
    assert stage.call().headers["x-stepwell-policy-version"] == "3"


def test_a_probe_that_fails_closes_the_gate_and_calls_wait_for_good_weights(stage: Stage) -> None:
    wrong = stage.weights(1)
    refused = stage.publish(replace(wrong, logprob=wrong.logprob - 0.5))
    assert refused.status_code == 503
    assert "differs by 0.5 nats. Calls wait until good weights come" in refused.json()["error"]["message"]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(stage.call)
        wait_until(lambda: stage.state()["waiting"] == 1)
        assert stage.publish(stage.weights(2)).status_code == 200
        answer = waiting.result(timeout=30)
    assert (answer.status_code, answer.headers["x-stepwell-policy-version"]) == (200, "2")
    assert stage.state()["gate"] == "open"


def test_weights_that_are_not_those_of_the_probe_close_the_gate(stage: Stage) -> None:
    promised, sent = stage.weights(1), stage.weights(2)
    assert stage.publish(replace(promised, folder=sent.folder)).status_code == 503
    assert stage.state()["gate"] == "paused"


def test_weights_of_another_model_are_refused_and_the_old_ones_served_on(stage: Stage) -> None:
    refused = stage.publish(stage.weights(1, num_hidden_layers=3))
    assert refused.status_code == 400
    assert "another model" in refused.json()["error"]["message"]
    assert stage.publish(replace(stage.weights(2), folder=stage.folder / "nowhere")).status_code == 503
    assert stage.state()["gate"] == "open"
    assert stage.call().headers["x-stepwell-policy-version"] == "0"


def test_a_gate_that_somebody_else_closed_stays_closed(stage: Stage) -> None:
    stage.http.post("/v1/admin/pause")
    assert stage.publish(stage.weights(1)).status_code == 200
    assert stage.state()["gate"] == "paused"


def test_calls_under_way_go_on_with_the_new_weights_and_none_fails(stage: Stage, pool: SQLitePool) -> None:
    weights, begun = stage.weights(1), threading.Event()
    reading, passes = stage.policy.reading, itertools.count()

    def watched():
        if next(passes) == 20:
            begun.set()
            wait_until(lambda: stage.policy.version == 1)  # else the calls may be done before
        return reading()

    stage.policy.reading = watched
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(stage.call, 300) for _ in range(4)]
        assert begun.wait(30)
        published = stage.publish(weights)
        answers = [call.result(timeout=60) for call in calls]
    assert published.status_code == 200
    assert [answer.status_code for answer in answers] == [200] * 4
    spans = [pool.step(answer.headers["x-stepwell-step"]) for answer in answers]
    assert (0, 1) in [(step.policy_version_min, step.policy_version_max) for step in spans]


@pytest.mark.parametrize("bad", [{"prompt_ids": []}, {"prompt_ids": [-1]}, {"prompt_ids": [2**40]}, {"tolerance": 0}])
def test_a_publication_that_is_none_is_refused(stage: Stage, bad: dict[str, Any]) -> None:
    good = {"version": 1, "folder": "somewhere", "prompt_ids": [1], "token": 1, "logprob": -1.0}
    assert stage.http.post("/v1/admin/weights", json=good | bad).status_code in (400, 422)


def test_an_engine_that_takes_no_weights_says_so(renderer: Renderer, serve) -> None:
    good = {"version": 1, "folder": "somewhere", "prompt_ids": [1], "token": 1, "logprob": -1.0}
    answer = httpx.post(serve(ScriptedEngine(renderer)) + "/v1/admin/weights", json=good)
    assert answer.status_code == 400
    assert "cannot load weights" in answer.json()["error"]["message"]
