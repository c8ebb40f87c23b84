"""Rows as Arrow tables: each kind of row is a msgspec struct, whose fields and types are the columns of every format.

A field whose value Arrow cannot guess from its Python type says so in `msgspec.Meta(extra=…)`: `{"items": "int32"}` for
an array of numbers, `{"json": True}` for anything that becomes JSON text.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from stepwell.errors import InvalidRecord

_SCALARS: Final = {
    msgspec.inspect.StrType: pa.string(),
    msgspec.inspect.LiteralType: pa.string(),
    msgspec.inspect.IntType: pa.int64(),
    msgspec.inspect.FloatType: pa.float64(),
    msgspec.inspect.BoolType: pa.bool_(),
    msgspec.inspect.BytesType: pa.binary(),
}
_ITEMS: Final = {"int32": pa.int32(), "float32": pa.float32()}


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of an archive."""

    def weight(self) -> int:
        """About how many bytes it takes in memory."""
        return 1024


@lru_cache
def schema_of(row: type[msgspec.Struct]) -> pa.Schema:
    """The Arrow schema of a kind of row: one column per field, in order."""
    info = msgspec.inspect.type_info(row)
    assert isinstance(info, msgspec.inspect.StructType)
    return pa.schema([pa.field(field.name, _arrow(field.type)) for field in info.fields])


def _arrow(kind: msgspec.inspect.Type, extra: dict[str, Any] | None = None) -> pa.DataType:
    match kind:
        case msgspec.inspect.Metadata(type=inner):
            return _arrow(inner, kind.extra)
        case msgspec.inspect.AnyType():
            marks = extra or {}
            return pa.list_(_ITEMS[marks["items"]]) if "items" in marks else pa.string()
        case msgspec.inspect.UnionType(types=types):
            (inner,) = (t for t in types if not isinstance(t, msgspec.inspect.NoneType))
            return _arrow(inner, extra)
        case msgspec.inspect.ListType(item_type=item):
            return pa.list_(_arrow(item))
        case msgspec.inspect.StructType(fields=fields):
            return pa.struct([pa.field(field.name, _arrow(field.type)) for field in fields])
        case _:
            return _SCALARS[type(kind)]


@lru_cache
def _json_columns(row: type[msgspec.Struct]) -> frozenset[str]:
    info = msgspec.inspect.type_info(row)
    assert isinstance(info, msgspec.inspect.StructType)
    marked = ((f.name, f.type.extra) for f in info.fields if isinstance(f.type, msgspec.inspect.Metadata))
    return frozenset(name for name, extra in marked if extra and extra.get("json"))


def to_table(row: type[msgspec.Struct], rows: Sequence[msgspec.Struct]) -> pa.Table:
    """Rows of one kind as a table.

    Raises:
        InvalidRecord: a value does not fit its column, such as an integer beyond 63 bits.
    """
    schema, as_json = schema_of(row), _json_columns(row)
    columns = []
    for field in schema:
        try:
            values = [_plain(getattr(one, field.name), field.name in as_json) for one in rows]
            columns.append(pa.array(values, field.type))
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
            raise InvalidRecord(f"{field.name} cannot be archived: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def _plain(value: Any, as_json: bool) -> object:
    if as_json:
        return None if value is None else msgspec.json.encode(value).decode()
    return msgspec.to_builtins(value) if isinstance(value, list | msgspec.Struct) else value


def from_batch(batch: pa.RecordBatch) -> Iterator[dict[str, object]]:
    """The rows of a batch, without what is null; arrays of numbers are numpy arrays."""
    names = batch.schema.names
    for values in zip(*map(_values, batch.columns), strict=True):
        yield {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _values(column: pa.Array) -> Iterable[Any]:
    kind = column.type
    if not (pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type)):
        plain: list[Any] = column.to_pylist()
        return plain
    flat = column.values.to_numpy(zero_copy_only=False)
    offsets, known = column.offsets.to_numpy().tolist(), column.is_valid().to_pylist()
    cuts = zip(offsets, offsets[1:], known, strict=False)
    return [flat[start:end] if valid else None for start, end, valid in cuts]


def encode_json(row: msgspec.Struct) -> bytes:
    """A row as one line of JSON, without the line break; fields at their default are left out.

    Raises:
        InvalidRecord: a text that is no Unicode.
    """
    try:
        return msgspec.json.encode(row, enc_hook=_listed)
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"a text cannot be archived: {error}") from error


def _listed(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} has no place in an archive")
