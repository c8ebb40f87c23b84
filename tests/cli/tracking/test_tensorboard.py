"""TensorBoard's own reader finds what was written."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.config import RecipeConfig
from stepwell.cli.recipes import find_recipe
from stepwell.cli.tracking.tensorboard import TensorBoardConfig
from stepwell.cli.training import training_run
from stepwell.config import load_config
from tests.cli.tracking.runs import run_in, track

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(folder: Path) -> Any:
    reader = accumulator.EventAccumulator(str(folder))
    reader.Reload()
    return reader


def rewards(folder: Path) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars("reward_mean")]


def test_each_metric_is_a_scalar_over_the_policy_version_at_the_time_of_its_update(tmp_path: Path) -> None:
    track(TensorBoardConfig(), tmp_path, 1, 2)
    reader = read(tmp_path / "tensorboard")
    assert reader.Tags()["scalars"] == ["reward_mean", "reward/odd name!"]
    assert [(e.wall_time, e.step, e.value) for e in reader.Scalars("reward_mean")] == [
        (1001.0, 1, 1.5),
        (1002.0, 2, 2.5),
    ]
    (text,) = reader.Tensors("recipe/text_summary")
    assert b"| learner.lr | `0.001` |" in text.tensor_proto.string_val[0]


def test_a_resumed_run_goes_on_in_its_folder_and_what_it_does_again_replaces_what_was_lost(tmp_path: Path) -> None:
    track(TensorBoardConfig(), tmp_path, 1, 2, 3)
    track(TensorBoardConfig(), tmp_path, 3, 4, reward=0.25)
    assert rewards(tmp_path / "tensorboard") == [(1, 1.5), (2, 2.5), (3, 3.25), (4, 4.25)]


def test_runs_in_a_folder_of_all_runs_have_one_each(tmp_path: Path) -> None:
    for name in ("a", "b"):
        track(TensorBoardConfig(folder=tmp_path / "all"), tmp_path / name, 1)
    titles = {run_in(tmp_path / name).title for name in ("a", "b")}
    assert {path.name for path in (tmp_path / "all").iterdir()} == titles


def test_a_recipe_names_its_trackers_and_every_update_of_its_run_reaches_them(tmp_path: Path) -> None:
    small = ("trainer.groups_per_update=1", "rollout.group_size=2", "warmup.updates=1", "tracking=[{use: tensorboard}]")
    for updates in (1, 2):
        recipe = load_config(RecipeConfig, find_recipe("lookup"), [*small, f"trainer.updates={updates}"])
        with training_run(recipe, tmp_path) as run:
            asyncio.run(run.train())
            recorded = run.served.pool.updates("lookup")
    expected = [(u.policy_version, pytest.approx(dict(u.metrics)["reward_mean"])) for u in recorded]
    assert rewards(tmp_path / "tensorboard") == expected
    assert len(expected) == 2
