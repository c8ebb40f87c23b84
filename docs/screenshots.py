"""Pictures of every page of the dashboard, light, dark and on a phone: `python docs/screenshots.py`.

They show a made-up pool (`stepwell demo --dashboard`), the same each time but for its clock.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from stepwell.cli.invented import fill
from stepwell.curation.selection import Selection
from stepwell.pool.store import SQLitePool
from tests.ui.conftest import CHROMIUM, QUIET, serve

FOLDER: Final = Path(__file__).parent / "images" / "dashboard"
STEPS: Final = 3_000
_PATIENCE: Final = 180_000  # milliseconds; a bound for a busy machine
PAGES: Final = {
    "overview": "/",
    "collection": "/collection?window=6%20h",
    "representation": "/representation?statuses=truncated",
    "trajectory": "/trajectory/traj-40-1?credit=grpo",
    "compare": "/compare?left=traj-40-1&right=traj-40-2",
    "curation": "/curation",
    "datasets": "/datasets",
    "optimisation": "/optimisation",
    "consumption": "/consumption",
    "update": "/update/grpo-search/12",
    "experiments": "/experiments",
}
LOOKS: Final = {"light": (1280, 900), "dark": (1280, 900), "phone": (360, 740)}


def main() -> None:
    """Write them anew."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pool = SQLitePool.open(Path(folder) / "pool.sqlite")
        fill(pool, STEPS)
        pool.save_selection("good", Selection(channel="grpo-search", min_reward=0.5))
        pool.freeze("search", "good", unit="trajectory")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        with serve(pool) as url:
            for look in LOOKS:
                _take(browser, url, look)
        browser.close()
        pool.close()


def _take(browser: Browser, url: str, look: str) -> None:
    width, height = LOOKS[look]
    scheme = "dark" if look == "dark" else "light"
    context = browser.new_context(
        base_url=url, viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="Europe/Berlin"
    )
    context.set_default_timeout(_PATIENCE)
    page = context.new_page()
    for name, path in PAGES.items():
        page.goto(path)
        page.wait_for_function("window.did_handshake === true")
        page.wait_for_timeout(800)  # charts and tables are drawn
        page.screenshot(path=FOLDER / f"{name}-{look}.jpg", type="jpeg", quality=70)
    context.close()


if __name__ == "__main__":
    main()
