"""A browser's way in: a form, and a cookie that opens pages and nothing else."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from stepwell.gateway.guard import Guard
from stepwell.gateway.keys import KeyRing

HTML = {"accept": "text/html"}


async def _page(request):
    return PlainTextResponse(request.state.principal.name)


async def _socket(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(socket.state.principal.name)
    try:
        async for text in socket.iter_text():
            await socket.send_text(text)
    finally:
        await socket.close()


def guarded(app, keys):
    guard = Guard(app, keys)

    async def door(scope, receive, send):
        await guard(scope, receive, send)

    return door


@pytest.fixture
def keys(tmp_path):
    return KeyRing.open(tmp_path / "keys.json")


@pytest.fixture
def browser(keys):
    routes = [Route(path, _page, methods=["GET", "POST"]) for path in ("/", "/curation", "/v1/stats", "/t/a/v1/models")]
    app = Starlette(routes=[*routes, WebSocketRoute("/_nicegui_ws/", _socket)])
    with TestClient(guarded(app, keys), base_url="http://here", follow_redirects=False) as client:
        yield client


def log_in(browser, key, **query):
    return browser.post("/login", params=query, data={"key": key})


def test_who_asks_for_a_page_without_a_key_gets_the_form_and_then_the_page(browser, keys):
    asked = browser.get("/curation?rule=length", headers=HTML)
    assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=%2Fcuration%3Frule%3Dlength")
    assert 'name="key"' in browser.get(asked.headers["location"]).text
    inside = log_in(browser, keys.create("ana", ["trainer"]), next="/curation?rule=length")
    assert (inside.status_code, inside.headers["location"]) == (303, "/curation?rule=length")
    assert browser.get("/curation", headers=HTML).text == "ana"


def test_programs_get_the_error_and_no_form(browser):
    answer = browser.get("/curation", headers={"accept": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/json")


def test_the_cookie_is_kept_from_scripts_and_from_other_sites(browser, keys):
    cookie = log_in(browser, keys.create("ana", ["trainer"])).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "secure" not in cookie
    browser.base_url = "https://here"
    assert "secure" in log_in(browser, keys.create("ana", ["trainer"])).headers["set-cookie"].lower()


@pytest.mark.parametrize("path", ["/v1/stats", "/t/a/v1/models"])
def test_the_cookie_opens_no_route_of_the_api(browser, keys, path):
    log_in(browser, keys.create("ana", ["admin"]))
    assert browser.get("/").text == "ana"
    assert [browser.request(method, path).status_code for method in ("GET", "POST")] == [401, 401]


def test_a_page_of_another_origin_has_no_use_of_the_cookie(browser, keys):
    kept = {"cookie": log_in(browser, keys.create("ana", ["admin"])).headers["set-cookie"].partition(";")[0]}
    here = {**kept, "host": "here"}
    with browser.websocket_connect("/_nicegui_ws/", headers={**here, "origin": "http://here"}) as socket:
        assert socket.receive_text() == "ana"
    elsewhere = {**here, "origin": "http://here:9999"}
    with pytest.raises(WebSocketDisconnect), browser.websocket_connect("/_nicegui_ws/", headers=elsewhere):
        pass
    assert browser.post("/", headers=elsewhere).status_code == 401


def test_a_wrong_key_and_one_without_the_scope_are_told_so_and_get_no_cookie(browser, keys):
    for key, says in (("swk_no_such", "No such key"), ("", "No such key"), (keys.create("bot", ["agent"]), "lacks")):
        answer = log_in(browser, key)
        assert (answer.status_code, says in answer.text) == (401, True)
        assert "set-cookie" not in answer.headers


def test_a_websocket_whose_key_is_revoked_is_heard_no_more(browser, keys):
    cookie = log_in(browser, keys.create("ana", ["admin"])).headers["set-cookie"].partition(";")[0]
    with browser.websocket_connect("/_nicegui_ws/", headers={"cookie": cookie}) as socket:
        socket.receive_text()
        socket.send_text("heard")
        assert socket.receive_text() == "heard"
        keys.revoke(keys.keys[0].id)
        socket.send_text("not heard")
        with pytest.raises(WebSocketDisconnect):
            socket.receive_text()


def test_a_revoked_key_is_out_at_once(browser, keys):
    log_in(browser, keys.create("ana", ["trainer"]))
    keys.revoke(keys.keys[0].id)
    assert browser.get("/", headers=HTML).status_code == 303


def test_who_is_in_already_is_sent_on_by_the_form(browser, keys):
    log_in(browser, keys.create("ana", ["trainer"]))
    assert browser.get("/login?next=/curation").headers["location"] == "/curation"


def test_logging_out_forgets_the_key(browser, keys):
    log_in(browser, keys.create("ana", ["trainer"]))
    assert browser.get("/logout").headers["location"] == "/login"
    assert browser.get("/", headers=HTML).status_code == 303


@pytest.mark.parametrize("target", ["//evil.example/", "https://evil.example/", "/\\evil.example", "", "javascript:x"])
def test_the_form_leads_nowhere_else(browser, keys, target):
    assert log_in(browser, keys.create("ana", ["trainer"]), next=target).headers["location"] == "/"


def test_what_the_form_shows_is_text(browser, keys):
    answer = log_in(browser, keys.create("<script>x</script>", ["agent"]), next='/"><script>y</script>')
    assert "<script>" not in answer.text


def test_a_form_that_is_too_long_is_refused(browser):
    assert browser.post("/login", content=b"key=" + b"x" * 10_000).status_code == 400


def test_without_keys_there_is_no_form():
    app = Starlette(routes=[Route("/", _page)])
    with TestClient(guarded(app, None)) as client:
        assert client.get("/login").status_code == 404
