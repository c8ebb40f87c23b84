"""OpenTelemetry's JSON encoding of spans (OTLP), as the collector's file exporter writes it, down to plain values."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec


class _Values(msgspec.Struct, frozen=True):
    values: list["_AnyValue"] = []


class _Pairs(msgspec.Struct, frozen=True):
    values: list["_KeyValue"] = []


class _AnyValue(msgspec.Struct, frozen=True, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: str | int | None = None
    double_value: float | None = None
    bytes_value: str | None = None
    array_value: _Values | None = None
    kvlist_value: _Pairs | None = None


class _KeyValue(msgspec.Struct, frozen=True):
    key: str
    value: _AnyValue = _AnyValue()


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    attributes: list[_KeyValue] = []


class _Span(msgspec.Struct, frozen=True, rename="camel"):
    trace_id: str
    span_id: str
    name: str = ""
    start_time_unix_nano: str | int = 0
    end_time_unix_nano: str | int = 0
    attributes: list[_KeyValue] = []
    events: list[_Event] = []


class _ScopeSpans(msgspec.Struct, frozen=True):
    spans: list[_Span] = []


class _ResourceSpans(msgspec.Struct, frozen=True, rename="camel"):
    scope_spans: list[_ScopeSpans] = []


class Export(msgspec.Struct, frozen=True, rename="camel"):
    """One line of the file: an export request."""

    resource_spans: list[_ResourceSpans] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span."""

    trace_id: str
    span_id: str
    began: int
    """Nanoseconds since 1970."""
    ended: int
    attributes: dict[str, object]
    events: tuple[tuple[str, dict[str, object]], ...]
    """(name, attributes) of each, in order."""


def spans(export: Export) -> Iterator[Span]:
    """All spans of an export request. Raises ValueError: a number is none."""
    for resource in export.resource_spans:
        for scope in resource.scope_spans:
            yield from map(_span, scope.spans)


def _span(span: _Span) -> Span:
    return Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        began=int(span.start_time_unix_nano),
        ended=int(span.end_time_unix_nano),
        attributes=_mapping(span.attributes),
        events=tuple((event.name, _mapping(event.attributes)) for event in span.events),
    )


def _mapping(pairs: list[_KeyValue]) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: _AnyValue) -> object:
    if value.array_value is not None:
        return [_plain(item) for item in value.array_value.values]
    if value.kvlist_value is not None:
        return _mapping(value.kvlist_value.values)
    if value.int_value is not None:
        return int(value.int_value)
    if value.bytes_value is not None:
        return base64.b64decode(value.bytes_value)
    plain = (value.string_value, value.bool_value, value.double_value)
    return next((one for one in plain if one is not None), None)
