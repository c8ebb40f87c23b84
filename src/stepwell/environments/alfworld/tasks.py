"""ALFWorld as a task set: households in text, with tasks of six types, of the published splits or of self-made games.

Both are folders of `game.tw-pddl` and `traj_data.json` and are read alike. The published ones (3,553 for training, 140
of rooms that are seen in training, 134 of others) are fetched by `alfworld-download`, from releases under the MIT
licence of https://github.com/alfworld/alfworld. `python -m stepwell.environments.alfworld` makes others without a
network; results on those are results on *ALFWorld-domain games (self-made)*, and do not compare with published ones.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar, get_args

import msgspec
from pydantic import Field

from stepwell.environments.alfworld.environment import AlfWorldEnvironment
from stepwell.environments.alfworld.game import Shelf, require
from stepwell.environments.commands import Interface
from stepwell.errors import InvalidRecord, InvalidRequest, MissingDependency, NotFound
from stepwell.rollout.env import TaskSetConfig

TaskType: TypeAlias = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
TASK_TYPES: Final[tuple[TaskType, ...]] = get_args(TaskType)

_S = TypeVar("_S", bound=msgspec.Struct)
SPLITS: Final = ("train", "valid_seen", "valid_unseen")
_GAME: Final = "game.tw-pddl"
_ABOUT: Final = "traj_data.json"
_UNSUPPORTED: Final = ("movable", "Sliced")
"""Parts of the names of folders whose tasks the package leaves out."""


class AlfWorldConfig(TaskSetConfig):
    """Settings of ALFWorld. Needs the extra `alfworld`."""

    path: Path | None = None
    """Folder with `train`, `valid_seen` and `valid_unseen`; None: `$ALFWORLD_DATA/json_2.1.1`, which
    `alfworld-download` fills."""
    types: tuple[TaskType, ...] = TASK_TYPES
    """Only the games with tasks of these types."""
    test_split: Literal["valid_seen", "valid_unseen"] = "valid_unseen"
    """What the split `test` is."""
    interface: Interface = "tool"
    """How the policy gives a command: `tool`, by `act(command)`; `text`, by writing it."""
    admissible: bool = False
    """Tell with each observation which commands are possible. Easier, and not what papers do that compare without."""
    max_steps: int = Field(default=50, ge=1)
    """Commands after which an episode is truncated; the usual 50. The rollout's `max_turns` should not be less."""
    loaded: int = Field(default=64, ge=1)
    """Games that are kept in memory, 5 MB to 30 MB each; another one takes a second to load."""

    def build(self) -> "AlfWorld":
        """The task set with these settings; see `AlfWorld` for what it may raise."""
        return AlfWorld(self)


class AlfWorld:
    """The task set: the games of a folder."""

    name: Final = "alfworld"

    def __init__(self, config: AlfWorldConfig) -> None:
        """Look through the folder; games are loaded when they are played.

        Raises:
            MissingDependency: the package or the games are not there.
            InvalidRecord: a file is broken; the message names it.
        """
        require()
        folder = config.path or _published()
        if not any((folder / split).is_dir() for split in SPLITS):
            raise MissingDependency(
                f"no games in {folder} ({', '.join(SPLITS)}): run alfworld-download, or make some with "
                "python -m stepwell.environments.alfworld FOLDER and set `path`"
            )
        self._config = config
        self._types: dict[str, str] = {}
        self._splits = {split: self._found(folder, split) for split in SPLITS}
        self._splits["test"] = self._splits[config.test_split]
        self._shelf = Shelf({task: folder / task / _GAME for task in self._types}, config.loaded)

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of the games of `train`, `test`, `valid_seen` or `valid_unseen`: their folders, in alphabetical order.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in self._splits:
            raise InvalidRequest(f"no split {split!r}; use {', '.join(self._splits)}")
        return self._splits[split]

    def task_type(self, task_id: str) -> str:
        """The type of a task, one of `TASK_TYPES`. Raises NotFound if there is no such task."""
        if task_id not in self._types:
            raise NotFound(f"there is no ALFWorld game {task_id!r}")
        return self._types[task_id]

    def make(self) -> AlfWorldEnvironment:
        """A fresh environment over the shared games."""
        config = self._config
        return AlfWorldEnvironment(self._shelf, config.interface, config.max_steps, admissible=config.admissible)

    def _found(self, folder: Path, split: str) -> tuple[str, ...]:
        wanted = {}
        for about in (folder / split).rglob(_ABOUT):
            task = about.parent.relative_to(folder).as_posix()
            if any(part in task for part in _UNSUPPORTED):
                continue
            kind = _read(about, _About).task_type
            if kind in self._config.types and _solvable(about.with_name(_GAME)):
                wanted[task] = kind
        self._types |= wanted
        return tuple(sorted(wanted))


class _About(msgspec.Struct):
    """What is wanted of `traj_data.json`."""

    task_type: str


class _Checked(msgspec.Struct):
    """What is wanted of a game before it is played."""

    solvable: bool | None = None


def _solvable(path: Path) -> bool:
    """Whether it was found that the game can be won; the published ones hold some of which that is not known."""
    return path.exists() and bool(_read(path, _Checked).solvable)


def _read(path: Path, kind: type[_S]) -> _S:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise InvalidRecord(f"{path}: {error}") from error


def _published() -> Path:
    data = os.environ.get("ALFWORLD_DATA")
    return (Path(data) if data else Path.home() / ".cache" / "alfworld") / "json_2.1.1"
