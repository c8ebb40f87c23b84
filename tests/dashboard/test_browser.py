"""The pages as `stepwell dashboard` serves them, in a real browser: stored text never becomes markup."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.dashboard.records import small_pool

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ATTACK = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>{{ 6 * 7 }}"
SERVE = "import typer; from stepwell.cli.dashboard import dashboard; typer.run(dashboard)"
TWICE = """
import sys
from fastapi import FastAPI
from fastapi.testclient import TestClient
from stepwell.dashboard.mounting import mount
from stepwell.dashboard.visit import Desk
from stepwell.pool.store import SQLitePool
for path in sys.argv[1:]:
    pool, app = SQLitePool.open(path), FastAPI()
    mount(app, Desk(pool=pool))
    with TestClient(app) as client:
        page = client.get("/")
        print(page.status_code, "1 open now" in page.text)
    pool.close()
"""
PATIENCE = 120.0  # seconds; a bound for a machine under load, not an expectation

Look = Callable[[str], str]


class _Page(HTMLParser):
    """What the browser shows: the text outside of scripts and styles, the title, and the count of injected images."""

    def __init__(self, dom: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.title, self.injected, self._within = "", "", 0, ""
        self.feed(dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag
        self.injected += ("src", "x") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "title":
            self.title += data
        elif self._within not in ("script", "style"):
            self.text += data


@contextmanager
def _served(pool: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-c", SERVE, str(pool), "--port", str(port)], cwd=pool.parent)
    try:
        _wait_for(url := f"http://127.0.0.1:{port}", server)
        yield url
    finally:
        server.terminate()
        server.wait(PATIENCE)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and server.poll() is None:
        try:
            httpx.get(url, trust_env=False)
            return
        except httpx.TransportError:
            time.sleep(0.1)
    pytest.fail(f"the dashboard did not start (exit code {server.poll()})")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a pool in which every text is an attack."""
    folder = tmp_path_factory.mktemp("attacked")
    small_pool(folder, mark=lambda text: f"{text} {ATTACK}").close()
    with _served(folder / "pool.sqlite") as url:
        yield url


@pytest.fixture
def look(url: str, tmp_path: Path) -> Look:
    """Gives the DOM of a page after the browser has run it."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]

    def dom(path: str) -> str:
        command = [CHROMIUM, *options, "--virtual-time-budget=8000", "--dump-dom", url + path]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout

    return dom


@pytest.mark.parametrize("path", ["/v1/nothing", "/x"])
def test_a_path_that_is_no_page_is_left_to_the_app(url: str, path: str) -> None:
    answer = httpx.get(url + path, trust_env=False)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize(
    ("path", "marked"),
    [
        ("/", ["capital", "rollout", "agent", "traj-2"]),
        ("/trajectory/traj-1", ["Be brief.", "Which city?", "Marn.", "It is Marn.", "answer", "tool"]),
        ("/trajectory/" + quote(f"traj-2 {ATTACK}".replace("/", "")), ["traj-2", "capital", "rollout"]),
        ("/collection?window=all", ["capital", "rollout", "agent", "traj-2"]),
        ("/representation", ["capital", "rollout", "agent", "traj-2"]),
        ("/representation?agents=" + quote(f"no {ATTACK}"), ["no"]),
        ("/trajectory/" + quote(f"unknown {ATTACK}".replace("/", "")), ["unknown"]),
    ],
    ids=[
        *("overview", "trajectory", "named by an attacker", "collection", "representation", "searched by an attacker"),
        "unknown",
    ],
)
def test_stored_markup_stays_text(look: Look, path: str, marked: list[str]) -> None:
    page = _Page(look(path))
    for text in marked:
        assert f"{text} <img src=x onerror=" in page.text
    assert page.injected == 0
    assert page.title.endswith(" · Stepwell")  # an attack that runs changes it
    assert "{{ 6 * 7 }}" in page.text


def test_a_process_can_serve_one_dashboard_after_another(tmp_path: Path) -> None:
    small_pool(tmp_path).close()
    command = [sys.executable, "-c", TWICE, str(tmp_path / "pool.sqlite"), str(tmp_path / "other.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["200 True", "200 False"], done.stderr
