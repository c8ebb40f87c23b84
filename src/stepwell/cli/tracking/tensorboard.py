"""TensorBoard: event files in the run's folder, or wherever `tensorboard --logdir` looks."""

from pathlib import Path
from typing import Any, ClassVar

from stepwell.cli.tracking.base import TrackedRun, Tracker, TrackerConfig
from stepwell.types import UpdateInfo


class TensorBoardConfig(TrackerConfig):
    """Event files for TensorBoard."""

    package: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "tensorboard"

    folder: Path | None = None
    """Where the run's own folder of event files is made, so that TensorBoard shows many runs side by side; null:
    `tensorboard` in the folder of the run."""

    def open(self, run: TrackedRun) -> Tracker:
        """See `TrackerConfig`."""
        return _TensorBoard(self.folder / run.title if self.folder else run.folder / "tensorboard", run)


class _TensorBoard:
    """Writes a file once there is an update: only then is it known which version a resumed run goes on with."""

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        self._folder = folder
        self._run = run
        self._writer: Any = None

    def write(self, update: UpdateInfo) -> None:
        if self._writer is None:
            self._writer = self._begun(update.policy_version)
        for name, value in update.metrics:
            self._writer.add_scalar(name, value, update.policy_version, walltime=update.created_at)
        self._writer.flush()

    def _begun(self, version: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # needs the optional package

        # what a killed run had told of this version and later ones is hidden: it is done again
        writer: Any = SummaryWriter(str(self._folder), purge_step=version)
        rows = "\n".join(f"| {key} | `{value}` |" for key, value in self._run.settings.items())
        writer.add_text("recipe", f"| setting | value |\n| --- | --- |\n{rows}", version)
        return writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
