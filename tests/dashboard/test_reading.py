"""The read models say what is in the pool."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.dashboard.reading.trajectory import Turn, step_views
from stepwell.pool.store import SQLitePool
from stepwell.types import Step
from tests.dashboard.records import small_pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = small_pool(tmp_path)
    yield pool
    pool.close()


def _steps(*calls: tuple[str, str]) -> list[Step]:
    """Steps that have these (request, response)."""
    return [
        Step(trajectory_id="t", index=i, prompt_ids=[1], response_ids=[2], logprobs=[0], request=asked, response=said)
        for i, (asked, said) in enumerate(calls)
    ]


def _request(*contents: object) -> str:
    return json.dumps({"messages": [{"role": "user", "content": content} for content in contents]})


def test_a_step_shows_only_what_the_step_before_had_not_seen(pool: SQLitePool) -> None:
    first, second = step_views(pool.trajectory("traj-1").steps)
    assert first.seen == (Turn("system", "Be brief."), Turn("user", "Which city?"))
    assert first.answer == Turn("assistant", "→ search({})")
    assert second.seen == (Turn("tool", "Marn."),)
    assert second.answer == Turn("assistant", "It is Marn.")
    assert not first.rewritten
    assert not second.rewritten


def test_a_client_that_changes_history_is_pointed_out() -> None:
    first, second = step_views(_steps((_request("a", "b"), ""), (_request("a", "c", "d"), "")))
    assert not first.rewritten
    assert second.rewritten
    assert second.seen == (Turn("user", "c"), Turn("user", "d"))


def test_an_answer_that_comes_back_changed_is_shown() -> None:
    said = json.dumps({"role": "assistant", "content": "Marn"})
    asked = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "marn!"}]})
    _, second = step_views(_steps((_request("a"), said), (asked, "")))
    assert second.seen == (Turn("assistant", "marn!"),)


@pytest.mark.parametrize(
    ("request_text", "turns"),
    [
        ("", ()),
        ("not JSON", (Turn("request", "not JSON"),)),
        ('{"messages": 3}', (Turn("request", '{"messages": 3}'),)),
        ('{"messages": ["x", {"content": 7}]}', (Turn("message", "x"), Turn("message", "7"))),
        (_request(None), (Turn("user", ""),)),
        (_request([{"type": "text", "text": "one"}, {"type": "image"}]), (Turn("user", 'one\n{"type": "image"}'),)),
        ("[" * 20_000, (Turn("request", "[" * 20_000),)),
        ('{"messages": [{"role": "user", "tool_calls": ["x"]}]}', (Turn("user", '"x"'),)),
    ],
)
def test_whatever_is_stored_can_be_shown(request_text: str, turns: tuple[Turn, ...]) -> None:
    (view,) = step_views(_steps((request_text, "plain words")))
    assert view.seen == turns
    assert view.answer == Turn("assistant", "plain words")
