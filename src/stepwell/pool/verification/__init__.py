"""Is the pool what it says? Every record is read and compared with its digest, every derived column with its fold,
every dataset with its own digest.

Not to be checked, because nothing else tells it: why a group was dropped, and what consumers were already given.
"""

from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from stepwell.pool.base import Fault
from stepwell.pool.verification import saved
from stepwell.pool.verification.database import database_faults, mend
from stepwell.pool.verification.records import Chunk, groups_after, trajectories_after, updates_after

PARTS: Final[tuple[Callable[..., Chunk], ...]] = (trajectories_after, groups_after, updates_after)
"""All that has to be looked at record by record, each part from cursor 0 on."""


def whole(connection: sa.Connection) -> tuple[Fault, ...]:
    """Faults of the database as such, and of what was saved in it by name."""
    return (*database_faults(connection), *saved.faults(connection))


__all__ = ["PARTS", "Chunk", "mend", "whole"]
