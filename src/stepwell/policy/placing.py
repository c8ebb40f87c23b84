"""Folders that are there whole, or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def placed(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target` at the end, in place of what was there; not if writing fails."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
