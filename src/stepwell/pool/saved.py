"""Selections that were saved under a name."""

import time

import sqlalchemy as sa
from pydantic import ValidationError

from stepwell.curation.selection import Selection
from stepwell.errors import NotFound, PoolError
from stepwell.pool.schema import selections


def save(connection: sa.Connection, name: str, selection: Selection) -> None:
    """See `Pool.save_selection`."""
    connection.execute(sa.delete(selections).where(selections.c.name == name))
    row = {"name": name, "definition": selection.model_dump_json(), "created_at": time.time()}
    connection.execute(sa.insert(selections), [row])


def selection(connection: sa.Connection, name: str) -> Selection:
    """See `Pool.selection`."""
    text = connection.scalar(sa.select(selections.c.definition).where(selections.c.name == name))
    if text is None:
        raise NotFound(f"no selection {name!r}")
    return _read(name, text)


def names(connection: sa.Connection) -> list[str]:
    """See `Pool.selections`."""
    return list(connection.scalars(sa.select(selections.c.name).order_by(selections.c.name)))


def delete(connection: sa.Connection, name: str) -> None:
    """See `Pool.delete_selection`."""
    if not connection.execute(sa.delete(selections).where(selections.c.name == name)).rowcount:
        raise NotFound(f"no selection {name!r}")


def _read(name: str, text: str) -> Selection:
    try:
        return Selection.model_validate_json(text)
    except ValidationError as error:
        raise PoolError(f"the selection {name!r} was saved by another Stepwell: {error}") from error
