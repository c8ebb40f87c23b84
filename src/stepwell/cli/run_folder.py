"""The folder of a run: its recipe, who may use it, and what other folders it is found by."""

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from stepwell.cli.assembly import model_name
from stepwell.cli.config import RecipeConfig
from stepwell.cli.parts import RECIPE_FILE
from stepwell.config import load_config
from stepwell.errors import InvalidRequest, NotFound
from stepwell.policy.builtin import resolve_model
from stepwell.rendering.renderer import Renderer
from stepwell.types import Ids


@contextmanager
def sole_use_of(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other trainers out of it.

    Raises:
        InvalidRequest: it cannot be made, or another process trains in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise InvalidRequest(f"cannot write to {folder}: {error.strerror}; choose another with --folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the system when the process dies
        except BlockingIOError as error:
            raise InvalidRequest(f"another process trains in {folder}; stop it, or choose another --folder") from error
        yield


def write_recipe(recipe: RecipeConfig, folder: Path) -> None:
    """Write the resolved recipe, so that the run can be taken up again by its folder alone."""
    text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
    partial = folder / f".{RECIPE_FILE}"
    partial.write_text(text, encoding="utf-8")
    partial.replace(folder / RECIPE_FILE)


def read_recipe(folder: Path, overrides: Sequence[str] = ()) -> RecipeConfig:
    """The recipe of a run that exists. Raises NotFound."""
    if not (folder / RECIPE_FILE).exists():
        raise NotFound(f"{folder} holds no run: it has no {RECIPE_FILE}")
    return load_config(RecipeConfig, folder / RECIPE_FILE, overrides)


def fresh_folder(base: Path, name: str) -> Path:
    """`base/<name>-<time>`, not made yet."""
    folder = base / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if folder.exists():
        raise InvalidRequest(f"{folder} exists already; wait a second, or choose one with --folder")
    return folder


def point_latest_at(folder: Path) -> None:
    """Make `latest`, beside a run that has been set up, lead to it."""
    latest = folder.parent / "latest"
    if latest.is_symlink() or not latest.exists():
        latest.unlink(missing_ok=True)
        latest.symlink_to(folder.name)


def decoders_of_runs(folder: Path) -> dict[str, Callable[[Ids], str]]:
    """By model name: token ids to text, for the run in `folder` and those in its subfolders (a demo has two)."""
    folders = [p for p in (folder, *sorted(folder.iterdir())) if (p / RECIPE_FILE).is_file()]
    recipes = [read_recipe(p) for p in folders]
    return {
        model_name(recipe): Renderer.from_directory(resolve_model(recipe.policy.model, recipe.seed)).decode
        for recipe in recipes
    }
