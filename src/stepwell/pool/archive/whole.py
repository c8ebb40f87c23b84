"""Files that are there as a whole or not at all, whatever interrupts their writing."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.errors import Conflict, InvalidRequest


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A hidden name beside `path` to write a file or folder under; it becomes `path` when the block ends well.

    An exception, Ctrl-C included, removes what was written. A killed process leaves a file whose name ends in
    `.partial`, which nothing takes for an archive.

    Raises:
        Conflict: there is something at `path` already; nothing is ever overwritten.
        InvalidRequest: the folder that `path` is to be in does not exist.
    """
    if path.exists():
        raise Conflict(f"{path} exists already; remove it, or write to another place")
    if not path.parent.is_dir():
        raise InvalidRequest(f"there is no folder {path.parent}; make it first")
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        _flush(partial)
        partial.rename(path)
        _sync(path.parent)
    except BaseException:
        _remove(partial)
        raise


def _flush(path: Path) -> None:
    """Everything at `path` is on disk afterwards: a name must not outlive what it stands for."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        _sync(file)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
