"""Where the recipes are that Stepwell ships: by name, so that `stepwell train lookup` works from any folder."""

from pathlib import Path

import stepwell
from stepwell.errors import NotFound


def find_recipe(name: str) -> Path:
    """A file of that path, else the shipped recipe of that name.

    Raises:
        NotFound: neither exists; the message lists the shipped ones.
    """
    if Path(name).is_file():
        return Path(name)
    folder = _folder()
    if (folder / f"{name}.yaml").is_file():
        return folder / f"{name}.yaml"
    shipped = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
    raise NotFound(f"there is no recipe {name!r}: give a YAML file or one of {shipped}")


def _folder() -> Path:
    """Inside an installed package, or beside `src` in a checkout."""
    package = Path(stepwell.__file__).parent
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"
