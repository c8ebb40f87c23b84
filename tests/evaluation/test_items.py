"""The file of items: it goes on where it was stopped, and never mixes what does not belong together."""

from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import ConfigError
from stepwell.evaluation.items import Item, ItemFile, item_of, read_items, write_parquet
from stepwell.rollout.run import Ending

SETTINGS = {"model": "tiny", "temperature": 0.0, "environment": {"use": "lookup"}}


def item(task: str = "t", sample: int = 0, **measured: float) -> Item:
    ending = Ending(trajectory_id="traj", task_id=task, how="terminated", reward=0.5, measured=measured, turns=2)
    return item_of(ending, sample, "kind")


@given(st.lists(st.tuples(st.text(), st.floats(allow_nan=False, allow_infinity=False)), max_size=5))
def test_what_was_kept_comes_back(tmp_path_factory: pytest.TempPathFactory, told: list[tuple[str, float]]) -> None:
    path = tmp_path_factory.mktemp("items") / "new" / "items.jsonl"
    kept = [item(task, number, f1=value) for number, (task, value) in enumerate(told)]
    with ItemFile(path, SETTINGS) as file:
        for one in kept:
            file.add(one)
        assert read_items(path) == (SETTINGS, kept)  # also while somebody adds to it
    with ItemFile(path, SETTINGS) as again:
        assert again.items == kept


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_a_kill_cut_off_is_forgotten_and_the_rest_goes_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "items.jsonl"
    with ItemFile(path, SETTINGS) as file:
        file.add(item("whole"))
        file.add(item("cut"))
    path.write_bytes(path.read_bytes()[:-cut])
    assert [one.task for one in read_items(path)[1]] == ["whole"]
    with ItemFile(path, SETTINGS) as again:
        assert [one.task for one in again.items] == ["whole"]
        again.add(item("next"))
    assert [one.task for one in read_items(path)[1]] == ["whole", "next"]


@pytest.mark.parametrize("left", [0, 1, 30])
def test_a_file_whose_first_line_a_kill_cut_off_is_begun_anew(tmp_path: Path, left: int) -> None:
    path = tmp_path / "items.jsonl"
    ItemFile(path, SETTINGS).close()
    path.write_bytes(path.read_bytes()[:left])
    with ItemFile(path, SETTINGS) as file:
        file.add(item("a"))
    assert read_items(path) == (SETTINGS, [item("a")])


def test_only_one_process_adds_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    with ItemFile(path, SETTINGS), pytest.raises(ConfigError, match="another process adds to"):
        ItemFile(path, SETTINGS)
    ItemFile(path, SETTINGS).close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write to .*items\.jsonl"):
        ItemFile(tmp_path / "items.jsonl", SETTINGS)


def test_texts_that_are_no_unicode_are_kept_as_far_as_they_are(tmp_path: Path) -> None:
    ending = Ending(trajectory_id="traj", task_id="t", how="failed", why="bad \ud800 and \u2028 odd")
    with ItemFile(tmp_path / "items.jsonl", SETTINGS) as file:
        file.add(item_of(ending, 0, ""))
    (kept,) = read_items(tmp_path / "items.jsonl")[1]
    assert kept.why == "bad ? and \u2028 odd"
    write_parquet(tmp_path / "items.parquet", [kept])


@pytest.mark.parametrize("changed", [{"temperature": 1.0}, {"environment": {"use": "chain"}}, {"more": 1}])
def test_other_settings_are_refused_by_name(tmp_path: Path, changed: dict[str, object]) -> None:
    ItemFile(tmp_path / "items.jsonl", SETTINGS).close()
    with pytest.raises(ConfigError, match=f"{next(iter(changed))} was"):
        ItemFile(tmp_path / "items.jsonl", {**SETTINGS, **changed})


@pytest.mark.parametrize("text", ["nonsense\n", "[]\n", '{"settings": {}}\n{"task": "t"}\n', '{"other": 1}\n'])
def test_another_kind_of_file_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no file of evaluated items"):
        ItemFile(path, SETTINGS)
    assert path.read_text() == text


def test_a_table_has_a_row_per_item_and_a_column_per_measure(tmp_path: Path) -> None:
    write_parquet(tmp_path / "items.parquet", [item("b", em=1.0), item("a", 1, f1=0.5), item("a", 0, em=0.0)])
    rows = pq.read_table(tmp_path / "items.parquet").to_pylist()
    assert [(row["task"], row["sample"], row["measured_em"], row["measured_f1"]) for row in rows] == [
        ("a", 0, 0.0, None),
        ("a", 1, None, 0.5),
        ("b", 0, 1.0, None),
    ]
    assert set(rows[0]) == (set(asdict(item())) - {"measured"}) | {"measured_em", "measured_f1"}


def test_a_failed_episode_scores_nothing() -> None:
    assert item(em=1.0).score("em") == 1.0
    assert item().score("em") == 0.0
    assert item().score("reward") == 0.5
