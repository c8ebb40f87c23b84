"""Curation, selections, datasets, siblings; steps packed more tightly. The log is written anew, record by record.

Only the log is copied: what is derived from it is derived again. Cursors stay as they were, and leases hold what they
held. All of it happens in the transaction that opens the pool, so it is done or not done.
"""

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from alembic import op

from stepwell.errors import PoolError
from stepwell.pool import ingest
from stepwell.pool.migrations import first
from stepwell.pool.schema import meta, metadata
from stepwell.pool.tokens import StepPacker
from stepwell.types import Record

revision = "0002"
down_revision = "0001"

_TABLES: Final = ("deliveries", "leases", "annotations", "steps", "trajectories", "groups", "updates", "meta")
_INDEXES: Final = (
    *("ix_trajectories_group_cursor", "ix_annotations_trajectory_cursor"),
    *("ix_leases_consumer", "ix_deliveries_lease_id"),
)
_AT_ONCE: Final = 512  # records appended at a time
_LEASES: Final = """
INSERT INTO leases (id, consumer, epoch, size, state, expires_at)
SELECT id, consumer, 0, size, state, expires_at FROM first_leases
"""
_DELIVERIES: Final = """
INSERT INTO deliveries (consumer, epoch, unit_cursor, lease_id, free_at, dropped, steps, tokens)
SELECT d.consumer, 0, d.group_cursor, d.lease_id, d.free_at, '', coalesce(given.steps, 0), coalesce(given.tokens, 0)
FROM first_deliveries AS d LEFT JOIN (
    SELECT group_cursor, sum(steps) AS steps, sum(prompt_tokens + response_tokens) AS tokens FROM (
        SELECT t.*, g.size, row_number() OVER (PARTITION BY group_cursor ORDER BY complete_cursor, t.cursor) AS place
        FROM first_trajectories AS t JOIN first_groups AS g ON g.cursor = t.group_cursor
        WHERE complete_cursor IS NOT NULL
    ) AS complete WHERE place <= size GROUP BY group_cursor
) AS given ON given.group_cursor = d.group_cursor
"""


def upgrade() -> None:
    """Put the old tables aside, fill the new ones from them, and drop them."""
    connection = op.get_bind()
    for index in _INDEXES:
        op.drop_index(index)
    for table in _TABLES:
        op.rename_table(table, f"first_{table}")
    metadata.create_all(connection)
    connection.execute(sa.insert(meta), [{"name": "cursor", "value": 0}])
    packer = StepPacker()
    for start, run in _runs(first.records(connection)):
        _append(connection, start, run, packer)
    connection.execute(sa.text("UPDATE meta SET value = (SELECT value FROM first_meta WHERE name = 'cursor')"))
    connection.execute(sa.text(_LEASES))
    connection.execute(sa.text(_DELIVERIES))
    for table in _TABLES:
        op.drop_table(f"first_{table}")


def _runs(log: Iterator[tuple[int, Record]]) -> Iterator[tuple[int, list[Record]]]:
    """Records whose cursors follow one another, with the cursor of the first."""
    start = 0
    run: list[Record] = []
    for cursor, record in log:
        if run and (cursor != start + len(run) or len(run) == _AT_ONCE):
            yield start, run
            run = []
        if not run:
            start = cursor
        run.append(record)
    if run:
        yield start, run


def _append(connection: sa.Connection, start: int, run: list[Record], packer: StepPacker) -> None:
    connection.execute(sa.update(meta).values(value=start - 1))
    for cursor, receipt in enumerate(ingest.append(connection, run, packer), start):
        if receipt.cursor != cursor:
            raise PoolError(
                f"{receipt.id!r} of the old pool cannot be written anew: {receipt.error or 'it is there twice'}"
            )
