"""The OpenAPI document: every route is in it, and the gateway does what it says, whatever is sent."""

import re
from collections.abc import Iterator

import pytest
import schemathesis
from fastapi import APIRouter
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema_rs import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route
from starlette.testclient import TestClient

from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.pool.store import SQLitePool
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
BASE = re.compile(r"^(/t/\{trajectory\})?(/v1)*(?=/|$)")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    renderer = tiny_renderer("line")
    pool = SQLitePool.open(tmp_path_factory.mktemp("pool") / "pool.sqlite")
    # a call during a pause waits; nothing here waits long
    config = GatewayConfig(pause_seconds=0.01, lease_wait_seconds=0.1, model_aliases=("*",))
    yield create_app(ScriptedEngine(renderer, ["well", "met"]), renderer, pool, config)
    pool.close()


def routes(router) -> Iterator[tuple[str, str]]:
    """(method, path) of every route, those of included routers too."""
    for route in router.routes:
        if isinstance(route, Route):
            yield from ((method, route.path) for method in route.methods)
        elif isinstance(getattr(route, "original_router", None), APIRouter):
            yield from routes(route.original_router)


def test_every_route_of_the_application_is_in_the_document(app):
    paths = app.openapi()["paths"]
    documented = {(method.upper(), path) for path, item in paths.items() for method in item if method != "servers"}
    missing = set()
    for method, path in routes(app):
        plain = path.replace(":path}", "}")
        found = {(method, plain), (method, BASE.sub("", plain) or "/")}
        if not found & documented and (method, plain) != ("HEAD", plain) and plain != "/openapi.json":
            missing.add((method, path))
    assert missing == set()
    assert len(documented) > 25


def test_the_models_of_what_is_sent_are_in_the_document_with_examples_that_they_accept(app):
    document = app.openapi()
    for path, item in document["paths"].items():
        body = item.get("post", {}).get("requestBody")
        if body is None or path.startswith("/v1/admin"):
            continue
        media = body["content"]["application/json"]
        schema = {"components": document["components"], **media["schema"]}
        name = next((part["$ref"] for part in schema.get("anyOf", [schema]) if "$ref" in part), "").rpartition("/")[2]
        examples = document["components"]["schemas"][name]["examples"] if name else [media["example"]]
        assert examples
        assert all(Draft202012Validator(schema).is_valid(example) for example in examples), path


def test_every_answer_is_documented_and_errors_have_a_shape(app):
    for path, item in app.openapi()["paths"].items():
        for method in item.keys() - {"servers"}:
            responses = item[method]["responses"]
            assert {"200", "400", "401", "429"} <= responses.keys(), path
            assert "422" not in responses
            assert responses["400"]["content"]["application/json"]["schema"]["$ref"]


def test_a_stored_trajectory_reads_as_the_document_says(app):
    http = TestClient(app)
    step = {"id": "s", "trajectory_id": "t", "index": 0, "prompt_ids": [1], "response_ids": [2], "logprobs": [-1]}
    http.post("/v1/events", json={"conversation": "t", "type": "user_turn"})
    http.post("/v1/steps", json=step)
    http.post("/v1/feedback", json={"step_id": "s", "thumbs": "up", "reward": True})
    document = app.openapi()
    view = {"components": document["components"], "$ref": "#/components/schemas/TrajectoryView"}
    Draft202012Validator(view).validate(http.get("/v1/trajectories/t").json())


@pytest.fixture(scope="module")
def schema(app):
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def test_the_document_is_served(app, schema):
    assert schema.raw_schema == app.openapi()


def test_whatever_is_sent_the_answer_is_one_that_the_document_knows(app, schema):
    http = TestClient(app)
    for result in schema.get_all_operations():
        operation = result.ok()
        http.post("/v1/admin/resume")  # some operations pause it

        @settings(
            max_examples=15,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        )
        @given(
            case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
            | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
        )
        def check(case):
            case.call_and_validate(checks=CHECKS)

        check()
