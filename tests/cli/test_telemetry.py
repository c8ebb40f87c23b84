"""Spans reach a collector; in a process of its own, since a tracer provider can be set once only."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

PROGRAM = """
from opentelemetry import trace
from stepwell.cli.telemetry import exported_spans
with exported_spans():
    trace.get_tracer("stepwell.gateway").start_span("chat tiny").end()
"""


def test_spans_are_sent_to_the_collector_that_the_environment_names(monkeypatch):
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
    server.shutdown()
    ((path, body),) = received
    assert path == "/v1/traces"
    assert b"chat tiny" in body
    assert b"stepwell-gateway" in body


def test_without_a_collector_nothing_is_set_up():
    program = PROGRAM + "assert type(trace.get_tracer_provider()).__name__ == 'ProxyTracerProvider'"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={"PATH": ""})
