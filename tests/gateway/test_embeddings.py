"""Embeddings go through as they are, and a server that fails is told of."""

import json

import pytest
from starlette.testclient import TestClient

from stepwell.errors import ConfigError
from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from tests.fakes.engines import ScriptedEngine
from tests.fakes.saying import http, saying
from tests.fakes.servers import free_port

BODY = {"model": "e", "input": "hello"}


def _asked(renderer, pool, url: str):
    config = GatewayConfig(embeddings_url=url, embeddings_key="secret")
    with TestClient(create_app(ScriptedEngine(renderer, []), renderer, pool, config)) as client:
        return client.post("/v1/embeddings", json=BODY)


@pytest.mark.parametrize("status", ["200 OK", "422 No"])
def test_an_answer_goes_through_as_it_is_whatever_its_status(renderer, pool, status) -> None:
    with saying(http(b'{"data": [1]}', "application/json; charset=utf-8", status)) as url:
        response = _asked(renderer, pool, f"{url}/v1/")
    assert (response.status_code, response.content) == (int(status[:3]), b'{"data": [1]}')
    assert response.headers["content-type"] == "application/json"


def test_a_server_that_is_not_there_is_the_engines_error(renderer, pool) -> None:
    response = _asked(renderer, pool, f"http://127.0.0.1:{free_port()}/v1")
    assert response.status_code == 503
    assert "cannot be reached" in json.loads(response.content)["error"]["message"]


def test_without_a_server_the_setting_is_named(renderer, pool) -> None:
    response = _asked(renderer, pool, "")
    assert response.status_code == 400
    assert "gateway.embeddings_url" in response.json()["error"]["message"]


def test_a_url_that_is_none_is_refused_at_once(renderer, pool) -> None:
    with pytest.raises(ConfigError, match="URL of a server"):
        _asked(renderer, pool, "http://")
