"""Parquet: one column per field of a row, compressed with zstd, written and read row group by row group."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stepwell.errors import InvalidRecord
from stepwell.pool.archive.flaws import Flaws
from stepwell.pool.archive.table import Row, from_batch, schema_of, to_table

_R = TypeVar("_R", bound=Row)
_GROUP_BYTES: Final = 32 * 2**20
_GROUP_ROWS: Final = 8192
_READ_ROWS: Final = 256


class ParquetFile(AbstractContextManager["ParquetFile"]):
    """A Parquet file that is being written; holds one row group in memory."""

    def __init__(self, path: Path, row: type[Row]) -> None:
        """Begin an empty file at `path`."""
        self._row = row
        self._sink = path.open("xb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema_of(row),
            compression="zstd",
            # token ids repeat from step to step: zstd finds whole prompts again, but only among plain numbers
            use_dictionary=[field.name for field in schema_of(row) if pa.types.is_string(field.type)],
            store_schema=True,
        )
        self._pending: list[Row] = []
        self._weight = 0

    def add(self, row: Row) -> bool:
        """One more row; True if it completed a row group, which is then in the file."""
        self._pending.append(row)
        self._weight += row.weight()
        if self._weight < _GROUP_BYTES and len(self._pending) < _GROUP_ROWS:
            return False
        self._flush()
        return True

    @property
    def size(self) -> int:
        """Bytes in the file so far."""
        return self._sink.tell()

    def _flush(self) -> None:
        self._writer.write_table(to_table(self._row, self._pending))
        self._pending, self._weight = [], 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write what is left. After an error the file is closed too, but holds no more than it did."""
        try:
            if kind is None and self._pending:
                self._flush()
            self._writer.close()
        finally:
            self._sink.close()


def write(path: Path, row: type[Row], rows: Iterable[Row], progress: Callable[[int], None]) -> tuple[int, list[Path]]:
    """All rows into one file; `progress` hears the count of rows after each row group. Gives rows and files."""
    count = 0
    with ParquetFile(path, row) as file:
        for count, one in enumerate(rows, 1):
            if file.add(one):
                progress(count)
    return count, [path]


def read(path: Path, row: type[_R], flaws: Flaws, first: str) -> Iterator[tuple[int, _R]]:
    """(row number from 1, row) of a file that has the column `first` and any others of `row`'s.

    Raises:
        InvalidRecord: it is no such Parquet file; nothing can be skipped then.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema = _known(path, row, file.schema_arrow, first)
            number = 0
            for batch in file.iter_batches(_READ_ROWS, columns=schema.names):
                for given in from_batch(batch.select(schema.names).cast(schema)):
                    number += 1
                    try:
                        yield number, msgspec.convert(given, row)
                    except msgspec.ValidationError as error:
                        flaws.add(path, number, error)
    except (pa.ArrowException, OSError) as error:
        raise InvalidRecord(f"{path} cannot be read as Parquet: {error}") from error


def _known(path: Path, row: type[Row], found: pa.Schema, first: str) -> pa.Schema:
    """The columns that the file has of a row's, in their proper types: other programs widen some when they copy."""
    if first not in found.names:
        raise InvalidRecord(
            f"{path} has no column {first!r}, so it is no export of steps; its columns are {found.names}"
        )
    return pa.schema([field for field in schema_of(row) if field.name in found.names])
