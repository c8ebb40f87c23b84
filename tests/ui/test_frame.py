"""What all pages have: navigation, the viewer's zone, light and dark."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, expect

from stepwell.cli.parts import mount_dashboard
from stepwell.cli.serving import served
from stepwell.gateway.app import create_app
from stepwell.gateway.keys import KeyRing
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer


@pytest.mark.short
def test_times_are_in_the_viewers_zone_from_the_first_visit_on(browser: Browser, url: str, pool: SQLitePool) -> None:
    context = browser.new_context(base_url=url, timezone_id="Asia/Kathmandu")
    page = context.new_page()
    info = pool.trajectory("traj-0-0").info
    page.goto("/trajectory/traj-0-0")
    there = datetime.fromtimestamp(info.created_at, UTC).astimezone(ZoneInfo("Asia/Kathmandu"))
    expect(page.get_by_text(f"{there:%Y-%m-%d %H:%M:%S}")).to_be_visible()
    context.close()


@pytest.mark.short
def test_dark_or_light_is_kept_from_page_to_page_and_a_button_with_the_focus_can_be_seen(page: Page) -> None:
    page.goto("/datasets")
    switch = page.get_by_role("button", name="Light or dark")
    switch.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    expect(switch).to_have_css("outline-style", "solid")
    page.keyboard.press("Enter")
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    page.wait_for_function("document.cookie.includes('stepwell_dark=1')")
    page.goto("/experiments")
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_function("document.cookie.includes('stepwell_dark=0')")
    page.reload()
    expect(page.locator("body")).to_have_class(re.compile("body--light"))


@contextmanager
def process(folder: Path, port: int) -> Iterator[None]:
    """`stepwell dashboard` in a process of its own, killed at the end."""
    command = [sys.executable, "-m", "stepwell", "dashboard", str(folder), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert b"Dashboard of" in server.stdout.readline()
    try:
        yield
    finally:
        server.kill()
        server.wait()


@pytest.mark.short
def test_a_server_that_is_restarted_under_an_open_page_serves_it_again(
    browser: Browser, pool: SQLitePool, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = browser.new_context(base_url=f"http://127.0.0.1:{port}", timezone_id="UTC")
    page = context.new_page()
    with process(tmp_path, port):
        page.goto("/representation?statuses=failed")
        expect(page.get_by_text("found, newest first")).to_be_visible()
    pool.put(TrajectoryInfo(id="meanwhile"), Annotation.end("meanwhile", "failed", "while the server was away"))
    with process(tmp_path, port):
        expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
    context.close()


@pytest.mark.short
def test_a_browser_logs_in_with_a_key_looks_and_logs_out(browser: Browser, pool: SQLitePool, tmp_path: Path) -> None:
    keys = KeyRing.open(tmp_path / "keys.json")
    key = keys.create("ana", ["trainer"])
    app = create_app(ScriptedEngine(tiny_renderer("line")), tiny_renderer("line"), pool, keys=keys)
    mount_dashboard(app, pool, {})
    with served(app) as url:
        context = browser.new_context(base_url=url, timezone_id="UTC")
        page = context.new_page()
        page.goto("/trajectory/traj-0-0")
        page.get_by_label("API key").fill("swk_wrong_key")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("No such key.")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_text("it lacks the scope ingest")).to_be_visible()
        assert page.url.endswith("/trajectory/traj-0-0")
        page.get_by_role("link", name="Log out").click()
        expect(page.get_by_label("API key")).to_be_visible()
        context.close()


@pytest.mark.short
@pytest.mark.parametrize("pressed", ["a", ""], ids=["who acts", "who only looks"])
def test_an_open_page_whose_key_is_revoked_asks_for_one(
    browser: Browser, pool: SQLitePool, tmp_path: Path, pressed: str
) -> None:
    keys = KeyRing.open(tmp_path / "keys.json")
    key = keys.create("ana", ["trainer", "ingest"])
    app = create_app(ScriptedEngine(tiny_renderer("line")), tiny_renderer("line"), pool, keys=keys)
    mount_dashboard(app, pool, {})
    with served(app) as url:
        context = browser.new_context(base_url=url, timezone_id="UTC")
        page = context.new_page()
        page.goto("/trajectory/traj-0-0")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_function("window.did_handshake")
        said = len(pool.notes("traj-0-0"))
        keys.revoke(keys.keys[0].id)
        if pressed:
            page.keyboard.press(pressed)
        expect(page.get_by_label("API key")).to_be_visible()
        assert len(pool.notes("traj-0-0")) == said
        context.close()
