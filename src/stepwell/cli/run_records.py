"""What the folders of runs hold for people to compare: read without what training needs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from stepwell.cli.parts import RECIPE_FILE
from stepwell.cli.secrets import without_secrets
from stepwell.dashboard.runs import RunFolder, Score

_COLUMNS: Final = ("benchmark", "model", "metric", "value", "low", "high", "items")
"""Of a file with evaluations, in the order of `Score`."""


def runs_around(folder: Path) -> dict[str, RunFolder]:
    """The runs in `folder`, in its subfolders and in those beside it, by name; what cannot be read is left out.

    Of several with one name, the nearest.
    """
    found: dict[str, RunFolder] = {}
    for place in _places(folder.resolve()):
        recipe = _recipe(place)
        name = recipe.get("name")
        if isinstance(name, str) and name not in found:
            found[name] = RunFolder(recipe=recipe, scores=tuple(_scores(place)))
    return found


def _places(folder: Path) -> Iterator[Path]:
    for base in (folder, folder.parent):
        try:
            near = [base, *sorted(base.iterdir())]
        except OSError:
            continue
        yield from (place for place in near if (place / RECIPE_FILE).is_file())


def _recipe(folder: Path) -> dict[str, Any]:
    try:
        text = (folder / RECIPE_FILE).read_text(encoding="utf-8")
        read = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return without_secrets(read) if isinstance(read, dict) else {}


def _scores(folder: Path) -> Iterator[Score]:
    """Of all Parquet files with the columns of evaluations, in the folder or one below it."""
    for path in sorted((*folder.glob("*.parquet"), *folder.glob("*/*.parquet"))):
        try:
            if set(pq.read_schema(path).names) >= set(_COLUMNS):
                rows = pq.read_table(path, columns=list(_COLUMNS)).to_pylist()
                yield from [Score(**row) for row in rows]
        except (OSError, pa.ArrowException):
            continue
