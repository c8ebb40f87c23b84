"""MLflow: a server, a database or a folder. Through its client object, which leaves the process's active run alone."""

import re
from typing import Any, ClassVar, Final

from stepwell.cli.tracking.base import TrackedRun, Tracker, TrackerConfig
from stepwell.types import UpdateInfo

_TAG: Final = "stepwell.run"
_LONGEST: Final = 6000
"""Characters of a parameter's value that MLflow takes."""
_BATCH: Final = 100
"""Parameters that MLflow takes at once."""


class MLflowConfig(TrackerConfig):
    """An MLflow tracking server or store."""

    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    uri: str | None = None
    """Of the server or store, such as `http://127.0.0.1:5000` or `sqlite:///runs/mlflow.db`; null: what
    `MLFLOW_TRACKING_URI` says, or else MLflow's default."""
    experiment: str = "stepwell"
    """The experiment that the run is put in; it is made if there is none."""

    def open(self, run: TrackedRun) -> Tracker:
        """See `TrackerConfig`."""
        from mlflow import MlflowClient  # noqa: PLC0415  # an optional dependency

        client: Any = MlflowClient(self.uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else client.create_experiment(self.experiment)
        found = client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'", max_results=1)
        if found:
            run_id = found[0].info.run_id
            client.update_run(run_id, status="RUNNING")
        else:
            run_id = client.create_run(experiment, tags={_TAG: run.id}, run_name=run.title).info.run_id
            _tell_settings(client, run_id, run)
        return _MLflow(client, run_id)


def _tell_settings(client: Any, run_id: str, run: TrackedRun) -> None:
    """Only at first: MLflow's parameters never change, while a resumed run may have other settings."""
    from mlflow.entities import Param  # noqa: PLC0415  # an optional dependency

    parameters = [Param(_allowed(key), str(value)[:_LONGEST]) for key, value in run.settings.items()]
    for start in range(0, len(parameters), _BATCH):
        client.log_batch(run_id, params=parameters[start : start + _BATCH])


def _allowed(name: str) -> str:
    """The name with the characters that MLflow knows."""
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)


class _MLflow:
    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def write(self, update: UpdateInfo) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415  # an optional dependency

        milliseconds = round(update.created_at * 1000)
        metrics = [Metric(_allowed(name), value, milliseconds, update.policy_version) for name, value in update.metrics]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)
