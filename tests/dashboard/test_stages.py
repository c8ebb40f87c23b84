"""Collection, representation and comparison in NiceGUI's simulated browser: an answer to every state and address."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nicegui import ui
from nicegui.testing import User, user_simulation

from stepwell.dashboard import frame
from stepwell.dashboard.mounting import register
from stepwell.dashboard.visit import Desk
from stepwell.pool.store import SQLitePool
from stepwell.types import TrajectoryInfo
from tests.dashboard.records import small_pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = small_pool(tmp_path)
    yield pool
    pool.close()


@pytest.fixture
async def user(pool: SQLitePool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[User]:
    monkeypatch.setattr(frame, "REFRESH", 0.05)
    monkeypatch.setattr(frame, "REST", 0.0)
    async with user_simulation() as user:
        register(Desk(pool=pool))
        yield user


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/collection", "Nothing came in within this window."),
        ("/collection?window=all", "Nothing came in within this window."),
        ("/representation", "Nothing has been collected yet."),
        ("/compare", "name them here"),
        ("/compare?left=a&right=b", "They cannot be compared"),
        ("/trajectory/a", "There is no trajectory 'a' in this pool."),
    ],
)
async def test_an_empty_pool_says_what_to_do(tmp_path: Path, path: str, said: str) -> None:
    pool = SQLitePool.open(tmp_path / "empty.sqlite")
    async with user_simulation() as user:
        register(Desk(pool=pool))
        await user.open(path)
        await user.should_see(said)
    pool.close()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/collection?window=%00", "Within the last"),
        (
            "/representation?before=x&min_reward=inf&statuses=,,&created_after=1&channel=",
            "2 trajectories, newest first",
        ),
        ("/representation?agents=%00", "NUL"),
        ("/representation?before=99999999999999999999", "2 trajectories, newest first"),
        ("/trajectory/traj-1?step=99&credit=nobody", "Step 1"),
        ("/compare?left=traj-1&right=traj-1&step=-3", "All their steps, 2 of each, are the same"),
        ("/compare?left=%00&right=traj-1", "They cannot be compared"),
    ],
)
async def test_an_address_that_is_wrong_is_no_failure(user: User, path: str, said: str) -> None:
    await user.open(path)
    await user.should_see(said)


async def test_results_follow_the_pool(user: User, pool: SQLitePool) -> None:
    await user.open("/representation?sources=eval")
    await user.should_see("0 trajectories found")
    pool.put(TrajectoryInfo(id="examined", source="eval"))
    await user.should_see("1 trajectory found", retries=100)
    (table,) = user.find(ui.table).elements
    assert [row["id"] for row in table.rows] == ["examined"]


async def test_a_pool_that_cannot_be_read_is_said_so(user: User, pool: SQLitePool) -> None:
    pool.close()
    for path in ("/collection", "/representation", "/trajectory/traj-1"):
        await user.open(path)
        await user.should_see("The pool cannot be read")
    await user.open("/compare?left=traj-1&right=traj-2")
    await user.should_see("They cannot be compared")
