"""The pages, in NiceGUI's simulated browser: right figures, no stored text as markup, and an answer to every state."""

import posixpath
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from nicegui import ui
from nicegui.testing import User, user_simulation

from stepwell.dashboard import frame
from stepwell.dashboard.addresses import trajectory_address, update_address
from stepwell.dashboard.mounting import register
from stepwell.dashboard.reading.representation import place_of
from stepwell.dashboard.visit import Desk
from stepwell.pool.store import SQLitePool
from stepwell.types import Step, TrajectoryInfo, UpdateInfo
from tests.dashboard.records import small_pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = small_pool(tmp_path)
    yield pool
    pool.close()


@pytest.fixture
async def user(pool: SQLitePool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[User]:
    monkeypatch.setattr(frame, "REFRESH", 0.05)
    async with user_simulation() as user:
        decode = lambda ids: "".join(f"<b>{token}</b>" for token in ids)  # noqa: E731
        register(Desk(pool=pool, decoders=dict.fromkeys(("", "tiny"), decode)))
        yield user


async def test_the_first_page_has_the_counts(user: User) -> None:
    await user.open("/")
    for text in ("Collection", "groups ready", "1 open now", "5 tokens sampled", "3 updates", "Trajectories"):
        await user.should_see(text)
    (table,) = user.find(ui.table).elements
    rows = {row["id"]: row for row in table.rows}
    assert list(rows) == ["traj-2", "traj-1"]
    assert rows["traj-1"] | {"opened": ""} == {
        "id": "traj-1",
        "id_href": "/trajectory/traj-1",
        "task": "capital",
        "agent": "agent",
        "source": "gateway",
        "status": "terminated",
        "verdict": "",
        "reward": "1.25",
        "steps": 2,
        "tokens": 5,
        "version": "0 to 4",
        "opened": "",
    }
    assert (rows["traj-2"]["reward"], rows["traj-2"]["version"], rows["traj-2"]["source"]) == ("", "", "rollout")


async def test_the_learning_curve_has_a_line_per_run(user: User) -> None:
    await user.open("/")
    drawn = [
        [(line["name"], line["data"]) for line in chart.options["series"]] for chart in user.find(ui.echart).elements
    ]
    assert [("run", [[5, 0.5], [6, 0.75]])] in drawn


async def test_a_page_follows_the_pool(user: User, pool: SQLitePool) -> None:
    await user.open("/")
    await user.should_not_see("2 open now")
    pool.put(TrajectoryInfo(id="traj-3"))
    await user.should_see("2 open now", retries=100)


async def test_a_trajectory_page_follows_its_trajectory(user: User, pool: SQLitePool) -> None:
    await user.open("/trajectory/traj-2")
    await user.should_see("No step yet")
    pool.put(Step(trajectory_id="traj-2", index=0, prompt_ids=[1], response_ids=[77], logprobs=[-1]))
    await user.should_see("Step 0", retries=100)


async def test_a_trajectory_page_shows_the_conversation_and_the_figures_of_each_step(user: User) -> None:
    await user.open("/trajectory/traj-1")
    for text in ("1.25 (answer 1, format 0.25)", "terminated", "group-1", "Which city?", "Marn.", "It is Marn."):
        await user.should_see(text)
    await user.should_see("policy versions 3 to 4 · 6 prompt tokens · 3 sampled · ended by stop")
    await user.should_see("reward 1 (answer 1)")
    await user.should_see("reward 0.25 (format 0.25)")


async def test_a_prompt_is_decoded_when_it_is_opened(user: User) -> None:
    await user.open("/trajectory/traj-1")
    await user.should_not_see("<b>1</b><b>2</b><b>3</b>")
    for panel in user.find("Raw prompt, request and response").elements:
        panel.set_value(True)
    await user.should_see("<b>1</b><b>2</b><b>3</b>")


async def test_what_merging_saves_in_the_group_is_worked_out_when_it_is_opened(user: User) -> None:
    await user.open("/trajectory/traj-1")
    await user.should_not_see("trainable steps: 2")
    for panel in user.find("What training saves by merging shared prefixes").elements:
        panel.set_value(True)
    await user.should_see("trainable steps: 2; their tokens: 14, of which an update computes 9 (64.3%)")
    (picture,) = (element for element in user.find(ui.html).elements if "position: absolute" in element.content)
    assert 'title="9 tokens from position 0, in 2 of 2 rows"' in picture.content


async def test_a_group_that_cannot_be_read_is_said_so_where_its_tree_would_be(user: User, pool: SQLitePool) -> None:
    await user.open("/trajectory/traj-1")
    pool.close()
    for panel in user.find("What training saves by merging shared prefixes").elements:
        panel.set_value(True)
    await user.should_see("The group cannot be read")


async def test_the_markup_of_a_page_holds_no_stored_text_unescaped(user: User) -> None:
    await user.open("/trajectory/traj-1")
    contents = [element.content for element in user.find(ui.html).elements if "<span title" in element.content]
    assert len(contents) == 2
    assert all("&lt;b&gt;" in content and "<b>" not in content for content in contents)


async def test_an_unknown_trajectory_is_said_to_be_unknown(user: User) -> None:
    await user.open("/trajectory/nowhere")
    await user.should_see("There is no trajectory 'nowhere' in this pool.")
    (search,) = user.find(kind=ui.link, content="Search for trajectories").elements
    assert search.props["href"] == "/representation"


async def test_an_empty_pool_says_what_to_do(tmp_path: Path) -> None:
    pool = SQLitePool.open(tmp_path / "empty.sqlite")
    async with user_simulation() as user:
        register(Desk(pool=pool))
        await user.open("/")
        await user.should_see("Point an agent's base URL at the gateway")
    pool.close()


async def test_a_pool_that_cannot_be_read_is_said_so(user: User, pool: SQLitePool) -> None:
    pool.close()
    await user.open("/")
    await user.should_see("The pool cannot be read")


async def test_what_is_wrong_in_an_address_is_said_to_be_ignored(user: User) -> None:
    await user.open("/representation?statuses=bogus&text=%25")
    await user.should_see("ignored: statuses bogus; text %.")
    await user.should_see("2 trajectories, newest first", retries=100)
    await user.open("/representation?statuses=open")
    await user.should_not_see("ignored")


@pytest.mark.parametrize("name", [".", "..", "...", "a?b#c%2e", "ü ö"])
async def test_a_browser_finds_a_trajectory_and_an_update_whatever_they_are_called(
    user: User, pool: SQLitePool, name: str
) -> None:
    pool.put(TrajectoryInfo(id=name, task_id="found"), UpdateInfo(run=name, policy_version=7))
    for address, seen in ((trajectory_address(name), "found"), (update_address(name, 7), name)):
        path = urlsplit(address).path
        assert unquote(path) == posixpath.normpath(unquote(path))  # what browsers do to it
        await user.open(address)
        await user.should_see(seen, retries=100)
    assert place_of(pool, name) == trajectory_address(name)


async def test_a_pool_whose_file_was_moved_away_is_said_so(user: User, pool: SQLitePool, tmp_path: Path) -> None:
    await user.open("/")
    (tmp_path / "pool.sqlite").rename(tmp_path / "old.sqlite")
    await user.should_see("the file was moved away or replaced", retries=100)
