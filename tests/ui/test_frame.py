"""What all pages have: navigation, the viewer's zone, light and dark."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from playwright.sync_api import Page, expect

from stepwell.pool.store import SQLitePool


def test_times_are_in_the_viewers_zone(page: Page, pool: SQLitePool) -> None:
    info = pool.trajectory("traj-0-0").info
    page.goto("/trajectory/traj-0-0")
    there = datetime.fromtimestamp(info.created_at, UTC).astimezone(ZoneInfo("Asia/Kathmandu"))
    expect(page.get_by_text(f"{there:%Y-%m-%d %H:%M:%S}")).to_be_visible()
