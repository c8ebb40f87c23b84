"""MLflow's own client finds what was written, in a database in a file."""

from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.tracking.mlflow import MLflowConfig
from tests.cli.tracking.runs import run_in, track

mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny brings 60 MB of others: pip install mlflow-skinny")


@pytest.fixture
def config(tmp_path: Path) -> MLflowConfig:
    return MLflowConfig(uri=f"sqlite:///{tmp_path}/mlflow.db")


def runs(config: MLflowConfig) -> tuple[Any, list[Any]]:
    client = mlflow.MlflowClient(config.uri)
    return client, client.search_runs([client.get_experiment_by_name(config.experiment).experiment_id])


def test_each_metric_is_a_series_over_the_policy_version_under_a_name_that_mlflow_knows(
    tmp_path: Path, config: MLflowConfig
) -> None:
    track(config, tmp_path / "run", 1, 2)
    client, (run,) = runs(config)
    history = client.get_metric_history(run.info.run_id, "reward_mean")
    assert [(m.step, m.value, m.timestamp) for m in history] == [(1, 1.5, 1001_000), (2, 2.5, 1002_000)]
    assert run.data.metrics["reward/odd name_"] == 1.0
    assert run.data.params["learner.lr"] == "0.001"
    assert (run.info.status, run.info.run_name) == ("FINISHED", run_in(tmp_path / "run").title)


def test_a_resumed_run_goes_on_as_the_same_run_and_others_are_others(tmp_path: Path, config: MLflowConfig) -> None:
    track(config, tmp_path / "run", 1, 2)
    track(config, tmp_path / "run", 3)
    track(config, tmp_path / "other", 1)
    client, found = runs(config)
    titles = {run.info.run_name: run.info.run_id for run in found}
    assert len(titles) == len(found) == 2
    history = client.get_metric_history(titles[run_in(tmp_path / "run").title], "reward_mean")
    assert [m.step for m in history] == [1, 2, 3]
