"""Spans out to a collector, where the standard variables of OpenTelemetry name one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace

from stepwell.errors import MissingDependency

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@contextmanager
def exported_spans() -> Iterator[None]:
    """Export spans while the block runs if `OTEL_EXPORTER_OTLP_ENDPOINT` is set; the rest is sent at its end.

    Raises:
        MissingDependency: it is set, but OpenTelemetry's SDK is not installed.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        yield
        return
    try:  # an extra: most gateways are watched by their metrics alone
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        message = f"{_ENDPOINTS[0]} is set, but spans need `pip install 'stepwell[telemetry]'`"
        raise MissingDependency(message) from error
    name = os.environ.get("OTEL_SERVICE_NAME", "stepwell-gateway")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
