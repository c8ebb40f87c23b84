"""What a tracker is: something outside of Stepwell that keeps and shows what each update of a run measured.

To add one, write one file with a subclass of `TrackerConfig` whose `open` returns a `Tracker`, and either add it to the
table in `stepwell.cli.tracking` or name it by its file (`tracking: [{use: my_tracker.py:MyTracker}]`).
"""

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from stepwell.cli.secrets import without_secrets
from stepwell.config import Config
from stepwell.errors import MissingDependency
from stepwell.types import UpdateInfo, new_id

Setting = str | int | float | bool
"""One setting of a recipe, as every tracker can show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that is tracked."""

    id: str
    """The same each time the run is taken up again; of letters, digits and dashes."""
    name: str
    folder: Path
    settings: Mapping[str, Setting]
    """The recipe by dotted keys, such as `learner.lr`."""

    @property
    def title(self) -> str:
        """What people see: the run's name, and enough of its id to tell it from others of that name."""
        return f"{self.name}-{self.id[-6:]}"


class Tracker(Protocol):
    """An opened tracker. It is called from one thread, which is not that of the training; whatever it raises is told
    once, and never stops the run."""

    def write(self, update: UpdateInfo) -> None:
        """Keep an update's metrics, under its policy version. A resumed run may tell of a version again."""
        ...

    def close(self) -> None:
        """The process ends or stops training: bring everything to where it belongs."""
        ...


class TrackerConfig(Config):
    """Base of the settings of trackers."""

    package: ClassVar[str] = ""
    """The importable package that the tracker needs."""
    extra: ClassVar[str] = ""
    """The extra of Stepwell that installs it."""

    def check(self) -> None:
        """Find out before the run begins. Raises MissingDependency."""
        # Found, not imported: it takes seconds. A folder without __init__.py, as W&B makes one, has no origin.
        spec = importlib.util.find_spec(self.package) if self.package else None
        if self.package and (spec is None or spec.origin is None):
            raise MissingDependency(f"tracking needs {self.package}: pip install 'stepwell[{self.extra}]'")

    def open(self, run: TrackedRun) -> Tracker:
        """Begin to track the run, or go on with what is tracked of it."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `open` that gives a Tracker")


def tracked_run(name: str, folder: Path, recipe: Mapping[str, Any]) -> TrackedRun:
    """The run in `folder`, with an id that stays there; `recipe` is as JSON, and is told without its secrets."""
    file = folder / "tracked_as"
    if not file.exists():
        file.write_text(new_id("run"), encoding="ascii")
    settings = dict(_flat(without_secrets(recipe), ""))
    return TrackedRun(id=file.read_text(encoding="ascii"), name=name, folder=folder, settings=settings)


def _flat(value: Any, key: str) -> Iterator[tuple[str, Setting]]:
    if isinstance(value, Mapping) and value:
        for inner, item in value.items():
            yield from _flat(item, f"{key}.{inner}" if key else str(inner))
    else:
        yield key, value if isinstance(value, str | int | float | bool) else json.dumps(value)
