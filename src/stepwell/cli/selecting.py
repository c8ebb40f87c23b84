"""How commands are told which trajectories are meant."""

from pathlib import Path
from typing import Annotated

import typer

from stepwell.config import load_config
from stepwell.curation.selection import Selection
from stepwell.pool.base import Pool

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="KEY=VALUE", help="A condition, such as min_reward=0.5 or tags=[good]; may be repeated."
    ),
]
Chosen = Annotated[
    str, typer.Option("--selection", metavar="NAME|FILE", help="A saved selection, or a YAML file with one.")
]


def selection_of(pool: Pool, chosen: str, where: list[str] | None) -> Selection:
    """The selection that is saved or written in a file, or else one of the conditions alone.

    Raises:
        ConfigError: a condition is none, or both a saved selection and conditions are given.
        NotFound: there is no such selection.
    """
    file = Path(chosen) if chosen.endswith((".yaml", ".yml")) else None
    if chosen and file is None and not where:
        return pool.selection(chosen)
    if chosen and file is None:
        values = pool.selection(chosen).model_dump()
        given = load_config(Selection, None, where or [])
        return Selection.model_validate({**values, **given.model_dump(exclude_unset=True)})
    return load_config(Selection, file, where or [])


def searches(where: list[str] | None) -> bool:
    """Whether a condition is about texts, whose index may have to be brought up to date: the pool is written to."""
    return any(condition.startswith("text=") for condition in where or [])
