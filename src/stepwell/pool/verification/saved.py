"""What people saved: are datasets and selections what they were, and does the feed's book-keeping refer to what is?"""

from collections.abc import Iterator

import sqlalchemy as sa
from pydantic import ValidationError

from stepwell.curation.selection import Selection
from stepwell.pool import crediting
from stepwell.pool.base import Fault
from stepwell.pool.datasets import Frozen
from stepwell.pool.frozen import Manifest
from stepwell.pool.schema import dataset_units, datasets, deliveries, frontiers, leases, meta, selections


def faults(connection: sa.Connection) -> Iterator[Fault]:
    """All faults of selections, datasets, deliveries, frontiers and credit; none of them can be computed anew."""
    for row in connection.execute(sa.select(selections)):
        if _broken(Selection, row.definition):
            yield _fault(row.name, "the selection's definition cannot be read; save it again")
    for row in connection.execute(sa.select(datasets)):
        yield from _dataset(connection, row)
    yield from _bookkeeping(connection)
    yield from (_fault(run, message) for run, message in crediting.damaged(connection))


def _dataset(connection: sa.Connection, row: sa.Row[tuple[object, ...]]) -> Iterator[Fault]:
    name = f"{row.name}@{row.version}"
    if _broken(Manifest, row.manifest):
        yield _fault(name, "the dataset's manifest cannot be read; freeze it again")
        return
    manifest = Manifest.model_validate_json(row.manifest)
    own = (dataset_units.c.name == row.name, dataset_units.c.version == row.version)
    units = connection.execute(sa.select(dataset_units).where(*own).order_by(dataset_units.c.unit_cursor)).all()
    if len(units) != manifest.units:
        yield _fault(name, f"the dataset has {len(units)} units, but was frozen with {manifest.units}; freeze it again")
    found = Frozen(row.unit, manifest, tuple((u.unit_cursor, bytes(u.members), bytes(u.digests)) for u in units))
    if found.digest != row.digest:
        yield _fault(name, "the dataset's content is not what its digest was made of; freeze it again")


def _bookkeeping(connection: sa.Connection) -> Iterator[Fault]:
    lost = deliveries.c.lease_id.is_not(None) & ~sa.exists().where(leases.c.id == deliveries.c.lease_id)
    for row in connection.execute(sa.select(deliveries.c.consumer, deliveries.c.unit_cursor).where(lost)):
        yield _fault(row.consumer, f"the unit at cursor {row.unit_cursor} was handed over in a lease that is not there")
    newest = connection.scalar(sa.select(meta.c.value).where(meta.c.name == "cursor")) or 0
    for row in connection.execute(sa.select(frontiers).where(frontiers.c.cursor > newest)):
        yield _fault(row.consumer, f"is done up to cursor {row.cursor}, but the log ends at {newest}")


def _broken(kind: type[Selection] | type[Manifest], text: str) -> bool:
    try:
        kind.model_validate_json(text)
    except ValidationError:
        return True
    return False


def _fault(name: str, message: str) -> Fault:
    return Fault(kind="saved", id=name, message=message, repairable=False)
