"""`stepwell drift`: shares per model and agent, as a table and as JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.pool.store import SQLitePool
from stepwell.types import TrajectoryInfo
from tests.cli.processes import Finished
from tests.pool.builders import make_step

Command = Callable[..., Finished]
FORKS = {"tidy": ("root", "", "", "client"), "lossy": ("root", "", "template", "tokenizer", "template")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pool.sqlite"
    pool = SQLitePool.open(path)
    for agent, forks in FORKS.items():
        steps = [make_step(agent, index=i, model="m", dialect="chat", fork=fork) for i, fork in enumerate(forks)]
        pool.put(TrajectoryInfo(id=agent, agent=agent), *steps)
    pool.put(make_step("tidy", index=8, model="m", dialect="chat", fork="root", side="title"))
    pool.put(make_step("tidy", index=9, model="m"))  # recorded by a program: no call that could drift
    pool.close()
    return path


def test_drift_is_the_share_of_continued_steps_whose_ids_do_not_go_on(command: Command, path: Path) -> None:
    lines = {line["agent"]: line for line in json.loads(command("drift", "--pool", str(path), "--json").out)}
    assert lines["tidy"] == {
        "model": "m",
        "agent": "tidy",
        "steps": 4,
        "roots": 1,
        "extended": 2,
        "client": 1,
        "template": 0,
        "tokenizer": 0,
        "side": 1,
        "drift": 0.0,
    }
    assert (lines["lossy"]["template"], lines["lossy"]["tokenizer"], lines["lossy"]["drift"]) == (2, 1, 0.75)


def test_the_table_has_a_line_per_model_and_agent_and_says_what_the_words_mean(command: Command, path: Path) -> None:
    out = command("drift", "--pool", str(path)).out
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in out.splitlines() if "│ m" in line]
    assert sorted(row[1:] for row in rows) == [
        ["lossy", "5", "1", "1", "0", "2", "1", "0", "75.0%"],
        ["tidy", "4", "1", "2", "1", "0", "0", "1", "0.0%"],
    ]
    assert "client: the client sent another history" in out


def test_an_empty_pool_has_no_lines(command: Command, tmp_path: Path) -> None:
    SQLitePool.open(tmp_path / "empty.sqlite").close()
    assert json.loads(command("drift", "--pool", str(tmp_path / "empty.sqlite"), "--json").out) == []
