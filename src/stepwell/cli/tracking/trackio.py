"""trackio: a local database with a dashboard (`trackio show`), or a server or Space that shows it to others."""

from typing import Any, ClassVar

from stepwell.cli.tracking.base import TrackedRun, Tracker, TrackerConfig
from stepwell.types import UpdateInfo


class TrackioConfig(TrackerConfig):
    """trackio."""

    package: ClassVar[str] = "trackio"
    extra: ClassVar[str] = "trackio"

    project: str = "stepwell"
    """The project that the run is put in."""
    server: str | None = None
    """Address of a trackio server; null: the database on this machine, in the folder that `TRACKIO_DIR` names."""
    space: str | None = None
    """A Hugging Face Space to show it in; needs `HF_HUB_OFFLINE=0` in the environment."""

    def open(self, run: TrackedRun) -> Tracker:
        """See `TrackerConfig`."""
        import trackio  # noqa: PLC0415  # an optional dependency

        opened: Any = trackio.init(
            self.project,
            name=run.title,  # trackio knows a run by its name
            resume="allow",
            config=dict(run.settings),
            server_url=self.server,
            space_id=self.space,
            embed=False,
        )
        return _Trackio(opened)


class _Trackio:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, update: UpdateInfo) -> None:
        self._run.log(dict(update.metrics), step=update.policy_version)

    def close(self) -> None:
        self._run.finish()
