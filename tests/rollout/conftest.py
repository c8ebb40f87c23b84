from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.pool.store import SQLitePool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    yield pool
    pool.close()
