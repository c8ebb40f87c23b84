"""Calls find their endpoint with and without the framework, and what is none finds the framework."""

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from stepwell.gateway.dispatch import Dispatch


class Named:
    """An application that only tells that it was asked."""

    def __init__(self, asked: list[str], name: str) -> None:
        self._asked = asked
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._asked.append(self._name)


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def dispatch(asked: list[str]) -> ASGIApp:
    endpoints = {path: Named(asked, path) for path in ("/v1/chat", "/chat")}
    return Dispatch(Named(asked, "framework"), endpoints, {"/v1/steps": Named(asked, "steps")})


async def _go(dispatch: ASGIApp, path: str, method: str = "POST", kind: str = "http") -> Scope:
    scope = {"type": kind, "method": method, "path": path}
    await dispatch(scope, None, None)
    return scope


@pytest.mark.parametrize("path", ["/v1/chat", "/chat"])
async def test_a_known_path_goes_to_its_endpoint_with_or_without_a_trajectory(dispatch, asked, path) -> None:
    assert (await _go(dispatch, path))["path_params"] == {}
    assert (await _go(dispatch, f"/t/a b:1{path}"))["path_params"] == {"trajectory": "a b:1"}
    assert asked == [path, path]


async def test_what_belongs_to_no_trajectory_has_one_path_only(dispatch, asked) -> None:
    await _go(dispatch, "/v1/steps")
    await _go(dispatch, "/t/x/v1/steps")
    assert asked == ["steps", "framework"]


@pytest.mark.parametrize(
    "path", ["/v1/chats", "/v1/chat/", "/t//v1/chat", "/t/v1/chat/x", "/t/x", "/t/", "/t/x/t/y/chat", "/", ""]
)
async def test_every_other_path_goes_to_the_framework_untouched(dispatch, asked, path) -> None:
    assert "path_params" not in await _go(dispatch, path)
    assert asked == ["framework"]


@pytest.mark.parametrize(("method", "kind"), [("GET", "http"), ("POST", "websocket"), ("", "lifespan")])
async def test_what_is_no_post_goes_to_the_framework(dispatch, asked, method, kind) -> None:
    await _go(dispatch, "/v1/chat", method, kind)
    assert asked == ["framework"]
