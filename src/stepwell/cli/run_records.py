"""What the folders of runs hold for people to compare: read without what training needs."""

from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from stepwell.cli.parts import RECIPE_FILE
from stepwell.cli.secrets import without_secrets
from stepwell.dashboard.runs import RunFolder, Score

_EVALUATIONS: Final = Path("evals")
"""Where `stepwell eval` writes unless it is told otherwise: a folder that is called like the run's."""
_SUMMARY: Final = "summary.parquet"
_COLUMNS: Final = [field.name for field in fields(Score)]


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
    path = folder / RECIPE_FILE
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, yaml.YAMLError):
        return {}


@lru_cache(maxsize=1024)
def _parsed(path: Path, _changed: int) -> dict[str, Any]:
    """Kept until the file changes: to parse one takes some hundredths of a second, and there may be many."""
    read = yaml.safe_load(path.read_text(encoding="utf-8"))
    return without_secrets(read) if isinstance(read, dict) else {}


def _scores(folder: Path) -> Iterator[Score]:
    """Of the evaluations in the folder, in those below it, and where `stepwell eval` puts those of the run."""
    import pyarrow as pa  # noqa: PLC0415 - it takes long to load, and few ask for it
    import pyarrow.parquet as pq  # noqa: PLC0415

    own = (*folder.glob(_SUMMARY), *folder.glob(f"*/{_SUMMARY}"), *(_EVALUATIONS / folder.name).glob(_SUMMARY))
    for path in sorted(own):
        try:
            rows = pq.read_table(path, columns=_COLUMNS).to_pylist()
        except (OSError, pa.ArrowException):
            continue
        yield from (Score(**row) for row in rows)
