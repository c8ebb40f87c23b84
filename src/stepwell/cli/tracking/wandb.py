"""Weights & Biases: its service, a server of one's own, or, offline, a folder that `wandb sync` uploads later."""

from typing import Any, ClassVar, Final, Literal

from stepwell.cli.tracking.base import TrackedRun, Tracker, TrackerConfig
from stepwell.errors import InvalidRequest
from stepwell.types import UpdateInfo

_VERSION: Final = "policy_version"
"""The axis of all metrics. W&B's own counter cannot go back, as a run does that was killed between two checkpoints."""


class WandbConfig(TrackerConfig):
    """Weights & Biases."""

    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    project: str = "stepwell"
    """The project that the run is put in."""
    entity: str | None = None
    """The user or team; null: W&B's default for the key."""
    mode: Literal["online", "offline"] = "online"
    """`offline`: into the folder of the run; nothing leaves the machine."""

    def open(self, run: TrackedRun) -> Tracker:
        """See `TrackerConfig`."""
        import wandb  # noqa: PLC0415  # an optional dependency

        if self.mode == "online" and not wandb.login(prompt=False):  # it would ask on the terminal, under our display
            raise InvalidRequest("no key for W&B: run `wandb login`, or set WANDB_API_KEY or mode: offline")
        opened: Any = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            id=run.id,
            name=run.title,
            dir=str(run.folder),
            config=dict(run.settings),
            resume="allow" if self.mode == "online" else None,  # offline, the upload puts parts of one id together
            # the terminal shows our display, and W&B's lines would tear it
            settings=wandb.Settings(console="off", silent=True),
        )
        opened.define_metric(_VERSION)
        opened.define_metric("*", step_metric=_VERSION)
        return _Wandb(opened)


class _Wandb:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, update: UpdateInfo) -> None:
        self._run.log({**dict(update.metrics), _VERSION: update.policy_version})

    def close(self) -> None:
        self._run.finish()
