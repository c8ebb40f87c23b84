"""What an address asks for: every selection has one, what is wrong in one is left out, and ids lead to their place."""

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.curation.selection import Selection
from stepwell.dashboard.reading.representation import EVERY, ignored, place_of, query_of, selection_of
from stepwell.pool.store import SQLitePool
from tests.dashboard.records import small_pool

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6).filter(
    lambda name: name == name.strip()
)
LISTS = st.lists(NAMES, max_size=3, unique=True).map(tuple)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = small_pool(tmp_path)
    yield pool
    pool.close()


@given(
    st.fixed_dictionaries(
        {"verdicts": st.sampled_from([EVERY, ("reject",)])},
        optional={
            "agents": LISTS,
            "sources": LISTS,
            "tags": LISTS,
            "without_tags": LISTS,
            "task_ids": LISTS,
            "group_ids": LISTS,
            "statuses": st.just(("open", "failed")),
            "channel": NAMES,
            "text": NAMES.filter(lambda text: any(map(str.isalnum, text))),
            "min_reward": st.floats(-1e9, 1e9),
            "max_reward": st.floats(-1e9, 1e9),
            "min_policy_version": st.integers(0, 2**63 - 1),
            "max_steps": st.integers(0, 2**63 - 1),
            "created_after": st.integers(0, 4_000_000).map(lambda minutes: 60.0 * minutes),
        },
    )
)
def test_the_address_of_a_selection_asks_for_it(wish: dict[str, object]) -> None:
    selection = Selection.model_validate(wish)
    for zone in (UTC, ZoneInfo("Asia/Kathmandu")):
        assert selection_of(query_of(selection, UTC), zone) == selection


def test_without_conditions_everything_is_wanted_and_the_address_is_short() -> None:
    assert selection_of({}, UTC) == Selection(verdicts=EVERY)
    assert query_of(Selection(verdicts=EVERY), UTC) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("statuses", "sleeping"),
        ("verdicts", "maybe"),
        ("min_reward", "much"),
        ("min_reward", "nan"),
        ("min_steps", "-1"),
        ("max_policy_version", "1.5"),
        ("created_after", "yesterday"),
        ("created_after", "9999-12-31T23:59-14:00"),
        ("created_before", "0001-01-01T00:00+14:00"),
        ("text", "% …"),
        ("text", "_"),
        ("nonsense", "1"),
        ("tags", "," * 200),
        ("agents", '"'),
    ],
)
def test_what_is_wrong_in_an_address_spoils_nothing_else(pool: SQLitePool, name: str, value: str) -> None:
    selection = selection_of({name: value, "statuses": "terminated"} | {name: value}, UTC)
    pool.trajectories(selection)
    assert selection_of({name: value, "channel": "c"}, UTC).channel == "c"


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ({}, {}),
        ({"statuses": "bogus", "channel": "c"}, {"statuses": "bogus"}),
        ({"text": "%", "min_steps": "few"}, {"text": "%", "min_steps": "few"}),
        ({"text": "100 %", "statuses": "open"}, {}),
    ],
)
def test_what_is_left_out_of_an_address_is_known(query: dict[str, str], wrong: dict[str, str]) -> None:
    assert ignored(query, UTC) == wrong


def test_a_time_without_an_offset_is_one_of_the_viewer() -> None:
    there = ZoneInfo("Asia/Kathmandu")
    assert selection_of({"created_after": "1970-01-01T05:30"}, there).created_after == 0.0
    assert selection_of({"created_after": "1970-01-01T05:30"}, UTC).created_after == 19_800.0


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("traj-1", "/trajectory/traj-1"),
        ("step-2", "/trajectory/traj-1?step=1"),
        ("resp_step-2", "/trajectory/traj-1?step=1"),
        ("chatcmpl-step-1", "/trajectory/traj-1?step=0"),
        ("group-1", "/representation?group_ids=group-1"),
        ("nowhere", None),
    ],
)
def test_an_id_leads_to_its_page(pool: SQLitePool, wanted: str, place: str | None) -> None:
    assert place_of(pool, wanted) == place
