"""Runs beside each other: what each came to, in which settings they differ, and what is averaged."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from stepwell.cli.run_records import runs_around
from stepwell.dashboard.reading.experiments import UNSET, differences, flat, seeds, summaries, tool_use
from stepwell.dashboard.reading.updates import UpdateLog
from stepwell.dashboard.runs import RunFolder, Score
from stepwell.pool.store import SQLitePool
from tests.dashboard.runs import RUN, looking, trained_pool, update
from tests.dashboard.test_consumption import rows_of, series_of

SCORE = Score(benchmark="qa", model="m", kind="", metric="accuracy", value=0.5, low=0.4, high=0.6, items=100)
RECIPE = {"name": "a", "seed": 1, "learner": {"lr": 0.1, "seed": 1}, "trainer": {}}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    made = trained_pool(tmp_path)
    yield made
    made.close()


def read(pool: SQLitePool) -> UpdateLog:
    log = UpdateLog()
    log.read(pool)
    return log


def test_a_run_is_summed_up(pool: SQLitePool) -> None:
    seconds = {"seconds_collect": 2.0, "seconds_learn": 1.0, "seconds_publish": 0.5}
    pool.put(update("new", 1, 500.0, reward_mean=0.9, sampled_tokens=10.0, **seconds))
    pool.put(update("new", 2, 600.0, reward_mean=0.1, sampled_tokens=5.0, **seconds))
    new, run, other = summaries(read(pool))
    assert (new.updates, new.version, new.last, new.best, new.tokens, new.seconds) == (2, 2, 0.1, 0.9, 15.0, 7.0)
    assert (new.first_at, new.last_at) == (500.0, 600.0)
    assert (run.run, run.tokens, other.run) == (RUN, None, "other")


def test_settings_are_told_by_their_dotted_names_and_only_those_that_differ() -> None:
    one = {"a": 1, "b": {"c": None, "d": [1, 2]}, "e": {}}
    assert flat(one) == {"a": "1", "b.c": "null", "b.d": "[1, 2]", "e": "{}"}
    rows = differences({"x": one, "y": one | {"a": 2, "f": True}})
    assert rows == [("a", {"x": "1", "y": "2"}), ("f", {"x": UNSET, "y": "True"})]
    assert differences({"x": one}) == []


def test_runs_that_differ_in_seeds_and_names_alone_belong_together() -> None:
    recipes = {
        "a": RECIPE,
        "b": RECIPE | {"name": "b", "seed": 2, "learner": {"lr": 0.1, "seed": 2}},
        "c": RECIPE | {"name": "c", "learner": {"lr": 0.2, "seed": 1}},
    }
    assert seeds(["a", "unknown", "b", "c", "lost"], recipes) == [["a", "b"], ["unknown"], ["c"], ["lost"]]


def test_tool_use_is_averaged_over_the_last_updates_of_all_tasks_and_of_each_kind(pool: SQLitePool) -> None:
    for version in range(1, 9):
        pool.put(update("u", version, tool_calls_per_trajectory=float(version), **{"turns_of/hard": 2.0 * version}))
    whole, hard = tool_use(read(pool), ["u", RUN])
    assert (whole.run, whole.kind, whole.figures) == ("u", "", {"tool_calls_per_trajectory": 6.0})
    assert (hard.kind, hard.figures) == ("hard", {"turns_per_trajectory": 12.0})


async def test_the_page_compares_the_runs_that_are_chosen(pool: SQLitePool) -> None:
    folders = {
        RUN: RunFolder(recipe=RECIPE, scores=(SCORE,)),
        "other": RunFolder(recipe=RECIPE | {"seed": 2, "learner": {"lr": 0.2, "seed": 1}}),
    }
    async with looking(pool, folders) as user:
        await user.open("/experiments")
        assert {row["run"] for row in rows_of(user, "Runs")} == {RUN, "other"}
        settings = rows_of(user, "Settings in which the chosen runs differ")
        assert [row["setting"] for row in settings] == ["learner.lr", "seed"]
        (score,) = rows_of(user, "Evaluations")
        assert (score["run"], score["value"], score["low"], score["items"]) == (RUN, 0.5, 0.4, 100)
        await user.open("/experiments?runs=other")
        await user.should_see("Choose two runs or more above.")
        await user.should_not_see("Evaluations")
        assert set(series_of(user)) == {"other"}


async def test_seeds_are_averaged_when_a_deep_link_says_so(pool: SQLitePool) -> None:
    folders = {RUN: RunFolder(recipe=RECIPE), "other": RunFolder(recipe=RECIPE | {"seed": 2, "name": "other"})}
    async with looking(pool, folders) as user:
        await user.open("/experiments?seeds=mean")
        assert series_of(user) == {f"mean of 2: other, {RUN}": [[1.0, 0.375]]}


async def test_without_folders_the_page_says_why_settings_are_not_compared(pool: SQLitePool) -> None:
    async with looking(pool) as user:
        await user.open("/experiments?x=tokens&metric=nothing")
        await user.should_see("The settings of these runs cannot be compared")


async def test_an_empty_pool_says_what_to_do(tmp_path: Path) -> None:
    empty = SQLitePool.open(tmp_path / "empty.sqlite")
    async with looking(empty) as user:
        await user.open("/experiments?runs=a")
        await user.should_see("No run has made an update yet")
        await user.should_not_see("Runs")
    empty.close()


def write_run(folder: Path, name: str, **settings: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"name": name, **settings}))


def test_folders_are_read_around_the_pools_own_without_secrets_the_nearest_first(tmp_path: Path) -> None:
    here = tmp_path / "runs" / "here"
    write_run(here, "a", lr=1, api_key="hidden")
    write_run(here / "part", "b")
    write_run(tmp_path / "runs" / "beside", "a", lr=2)
    write_run(tmp_path / "runs" / "other", "c")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "recipe.yaml").write_text("a: [")
    found = runs_around(here)
    assert set(found) == {"a", "b", "c"}
    assert found["a"].recipe["lr"] == 1
    assert "hidden" not in str(found["a"].recipe)
    assert runs_around(tmp_path / "nowhere" / "at all") == {}


def test_evaluations_are_read_where_stepwell_eval_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "one", "a")
    columns = {name: [getattr(SCORE, name)] for name in Score.__dataclass_fields__}
    for place in ("evals/one", "runs/one/later"):
        (tmp_path / place).mkdir(parents=True)
        pq.write_table(pa.table(columns | {"extra": [1]}), tmp_path / place / "summary.parquet")
    (tmp_path / "runs" / "one" / "summary.parquet").write_bytes(b"nonsense")
    (tmp_path / "runs" / "one" / "old").mkdir()
    pq.write_table(pa.table({"other": [1]}), tmp_path / "runs" / "one" / "old" / "summary.parquet")
    assert runs_around(tmp_path / "runs" / "one")["a"].scores == (SCORE, SCORE)
