"""What holds of every page: it fits, it can be read and reached by everybody, and stored text stays text."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from stepwell.cli.invented import fill
from stepwell.dashboard.pages import PAGES
from stepwell.pool.store import SQLitePool
from tests.dashboard.records import small_pool
from tests.ui.conftest import PATIENCE, SMALL, say_zone, serve

ATTACK = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>{{ 6 * 7 }}"
EXAMPLES = {
    "/trajectory/{trajectory_id}": "/trajectory/traj-1-1",
    "/compare": "/compare?left=traj-1-1&right=traj-1-2",
    "/update/{run}/{policy_version}": "/update/grpo-search/3",
}
PATHS = [EXAMPLES.get(page.path, page.path) for page in PAGES]
WIDTHS = (360, 768, 1440)

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a pool with work of all kinds, for looking only."""
    pool = SQLitePool.open(tmp_path_factory.mktemp("pages") / "pool.sqlite")
    fill(pool, int(os.environ.get("STEPWELL_UI_STEPS", SMALL)))
    with serve(pool) as url:
        yield url
    pool.close()


@pytest.fixture
def open_page(browser: Browser, url: str) -> Iterator[Open]:
    """Opens a page of a width in a colour scheme, and waits until it is quiet."""
    contexts = []

    def opened(path: str, width: int = 1440, scheme: str = "light", base: str = url) -> Page:
        context = browser.new_context(
            base_url=base, viewport={"width": width, "height": 900}, color_scheme=scheme, timezone_id="UTC"
        )
        context.set_default_timeout(PATIENCE)
        say_zone(context, base, "UTC")
        contexts.append(context)
        page = context.new_page()
        page.goto(path)
        page.wait_for_load_state("networkidle")
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.short
@pytest.mark.parametrize("path", PATHS)
def test_no_page_is_wider_than_the_window(open_page: Open, path: str) -> None:
    assert _wider(open_page(path)) == dict.fromkeys(WIDTHS, 0)


def _wider(page: Page) -> dict[int, int]:
    """Pixels by which a page is wider than windows of these widths."""
    wider = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            "() => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(true), 50)))"
        )
        wider[width] = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider


@pytest.fixture(scope="module")
def verbose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a pool in which every text has a word of a hundred letters."""
    pool = small_pool(tmp_path_factory.mktemp("verbose"), mark=lambda text: f"{text} {'Donaudampfschiff' * 7}")
    with serve(pool) as url:
        yield url
    pool.close()


LONG = quote(f"run {'Donaudampfschiff' * 7}")


@pytest.mark.short
@pytest.mark.parametrize(
    "path",
    [page.path for page in PAGES if "{" not in page.path]
    + ["/trajectory/traj-1", "/compare?left=traj-1&right=traj-1", "/curation?tab=judge", f"/update/{LONG}/7"],
)
def test_no_page_is_wider_for_the_longest_words(open_page: Open, verbose: str, path: str) -> None:
    assert _wider(open_page(path, base=verbose)) == dict.fromkeys(WIDTHS, 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_no_serious_fault(open_page: Open, path: str, scheme: str) -> None:
    found = Axe().run(open_page(path, scheme=scheme)).response["violations"]
    serious = {
        fault["id"]: [node["html"][:200] for node in fault["nodes"][:3]]
        for fault in found
        if fault["impact"] in ("serious", "critical")
    }
    assert serious == {}


@pytest.mark.parametrize("path", PATHS)
def test_every_page_has_a_name_and_one_first_heading(open_page: Open, path: str) -> None:
    page = open_page(path)
    assert re.fullmatch(r"\w[\w ]* · Stepwell", page.title())
    assert page.get_by_role("heading", level=1).count() == 1


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a pool in which every text is an attack."""
    folder: Path = tmp_path_factory.mktemp("attacked")
    pool = small_pool(folder, mark=lambda text: f"{text} {ATTACK}")
    with serve(pool) as url:
        yield url
    pool.close()


@pytest.mark.short
@pytest.mark.parametrize(
    "path",
    [page.path for page in PAGES if "{" not in page.path] + ["/trajectory/traj-1", "/compare?left=traj-1&right=traj-1"],
)
def test_stored_markup_stays_text_on_every_page(open_page: Open, attacked: str, path: str) -> None:
    page = open_page(path, base=attacked)
    assert "taken" not in page.title()
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("path", PATHS)
def test_nonsense_in_the_address_is_no_error(open_page: Open, path: str) -> None:
    base, _, own = path.partition("?")
    nonsense = "step=x&before=-1&window=%00&min_reward=nan&page=9e99&group=%3Cb%3E&run=%22&credit=1&zoom=-5"
    page = open_page(f"{base}?{own}&{nonsense}")
    assert "500" not in page.title()
    assert page.get_by_role("navigation").count() == 1
