"""Finished runs are kept as they were, and found again only with the same settings."""

from pathlib import Path

import pytest

from experiments.design import Job
from experiments.run import Point, RunConfig
from experiments.store import Store

POINTS = (
    Point(tokens=0, steps=0, updates=0, seconds=0.0, score=0.1),
    Point(tokens=50, steps=10, updates=2, seconds=1.25, score=0.5, ratio=1.01, clipped=0.2, alike=0.3, entropy=0.4),
)


def job(arm: str = "a", **settings: object) -> Job:
    return Job("case", arm, 1, RunConfig.model_validate({"algorithm": {"use": "grpo"}, **settings}))


def test_what_is_put_is_found_by_another_process(tmp_path: Path) -> None:
    Store(tmp_path / "own.jsonl").put(job(), POINTS)
    found = Store(tmp_path / "own.jsonl").find(job())
    assert found is not None
    assert found.points == POINTS


def test_a_run_with_other_settings_is_not_found_and_takes_the_old_ones_place(tmp_path: Path) -> None:
    store = Store(tmp_path / "own.jsonl")
    store.put(job(), POINTS)
    changed = job(budget=7)
    assert store.find(changed) is None
    store.put(changed, POINTS[:1])
    assert (store.find(job()), len((tmp_path / "own.jsonl").read_text().splitlines())) == (None, 1)


@pytest.mark.parametrize(
    "settings", [{"seed": 2}, {"learner": {"lr": 0.1}}, {"algorithm": {"use": "grpo", "scale": "none"}}], ids=str
)
def test_every_setting_decides(settings: dict[str, object]) -> None:
    assert job(**settings).config.key != job().config.key


def test_a_default_that_is_spelled_out_changes_nothing() -> None:
    assert job(algorithm={"use": "grpo", "scale": "std"}).config.key == job().config.key


def test_the_file_does_not_depend_on_the_order_of_runs(tmp_path: Path) -> None:
    for name, order in (("one", ("a", "b")), ("other", ("b", "a"))):
        for arm in order:
            Store(tmp_path / name).put(job(arm), POINTS)
    assert (tmp_path / "one").read_text() == (tmp_path / "other").read_text()
