"""`StepArrays` as an Arrow IPC stream: one record batch with one row, in which each column is the list of that name."""

from typing import Any, Final

import pyarrow as pa

from stepwell.errors import InvalidRecord
from stepwell.pool.arrays import ARRAYS, IDS, StepArrays

_FORMAT: Final = {b"format": b"stepwell.step_arrays", b"version": b"1"}
_TYPES: Final = {"<i4": pa.int32(), "<i8": pa.int64(), "<f4": pa.float32(), "|b1": pa.bool_()}
_SCHEMA: Final = pa.schema(
    [
        *(pa.field(name, pa.large_list(_TYPES[dtype]), nullable=False) for name, (dtype, _) in ARRAYS.items()),
        *(pa.field(name, pa.large_list(pa.string()), nullable=False) for name in IDS),
    ],
    metadata=_FORMAT,
)


def to_arrow(arrays: StepArrays) -> bytes:
    """The stream as bytes.

    Raises:
        InvalidRecord: an id is no Unicode.
    """
    try:
        columns = [_one_list(pa.array(getattr(arrays, field.name), field.type.value_type)) for field in _SCHEMA]
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"an id cannot be written: {error}") from error
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _one_list(values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def from_arrow(data: bytes) -> StepArrays:
    """What `to_arrow` wrote; numbers are views of its bytes.

    Raises:
        InvalidRecord: it is something else, or another version.
    """
    try:
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise InvalidRecord(f"these bytes are no Arrow stream: {error}") from error
    if table.schema != _SCHEMA or table.schema.metadata != _FORMAT or table.num_rows != 1:
        raise InvalidRecord("this Arrow stream holds no step arrays of version 1")
    lists = {name: table[name].chunk(0)[0].values for name in table.column_names}
    arrays: dict[str, Any] = {name: lists[name].to_numpy(zero_copy_only=False) for name in ARRAYS}
    ids: dict[str, Any] = {name: tuple(lists[name].to_pylist()) for name in IDS}
    return StepArrays(**arrays, **ids)
