"""What is measured and traced of each call."""

import logging

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from stepwell.engines.base import CacheUse
from stepwell.gateway.app import create_app
from tests.fakes.engines import ScriptedEngine

CALL = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
PATH = "/t/t1/v1/chat/completions"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exporter():
    """The process's tracer provider can be set once only."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter):
    exporter.clear()
    return exporter


@pytest.fixture
def engine(renderer):
    return ScriptedEngine(renderer, ["well met"])


@pytest.fixture
def http(engine, pool):
    with TestClient(create_app(engine, engine.renderer, pool), raise_server_exceptions=False) as client:
        yield client


def ours(spans):
    """The web framework may make spans of its own."""
    return [span for span in spans.get_finished_spans() if span.instrumentation_scope.name == "stepwell.gateway"]


def metrics(http):
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


def calls(http):
    found = {name[1:]: value for name, value in metrics(http).items() if name[0] == "stepwell_calls_total"}
    return {(dict(labels)["dialect"], dict(labels)["outcome"]): value for labels, value in found.items()}


def test_calls_are_counted_by_dialect_and_outcome(http, engine):
    http.post(PATH, json=CALL)
    http.post(PATH, json={**CALL, "stream": True})
    http.post("/v1/messages", json={**CALL, "max_tokens": 4})
    http.post("/v1/messages", json={**CALL, "max_tokens": 0})
    http.post(PATH, json={**CALL, "model": "gpt"})
    http.post(PATH, content=b"{")
    engine.context_length = 5
    http.post("/v1/responses", json={"model": "tiny", "input": "hello"})
    assert calls(http) == {
        ("chat", "ok"): 2,
        ("messages", "ok"): 1,
        ("messages", "invalid_request"): 1,
        ("chat", "model_not_found"): 1,
        ("chat", "invalid_request"): 1,
        ("responses", "context_length_exceeded"): 1,
    }


def test_tokens_steps_and_times_are_measured(http, pool):
    http.post(PATH, json=CALL)
    http.post(PATH, json={**CALL, "stream": True})
    stats, measured = pool.stats(), metrics(http)
    assert measured["stepwell_tokens_total", ("kind", "prompt")] == stats.prompt_tokens
    assert measured["stepwell_tokens_total", ("kind", "response")] == stats.response_tokens
    assert sum(value for name, value in measured.items() if name[0] == "stepwell_steps_total") == 2
    assert measured["stepwell_call_seconds_count", ("dialect", "chat")] == 2
    assert measured["stepwell_first_token_seconds_count", ("dialect", "chat")] == 1
    assert measured["stepwell_policy_version",] == 3
    assert (measured["stepwell_calls_running",], measured["stepwell_calls_waiting",]) == (0, 0)


def test_the_prefix_cache_of_a_local_engine_is_measured_and_of_others_nothing_is_said(http, renderer, pool):
    class Local(ScriptedEngine):
        cache_use = CacheUse(prompt_tokens=200, reused_tokens=147)

    with TestClient(create_app(Local(renderer), renderer, pool)) as local:
        measured = metrics(local)
    assert measured["stepwell_prefix_cache_queries_total",] == 200
    assert measured["stepwell_prefix_cache_hits_total",] == 147
    assert not [name for name in metrics(http) if "prefix_cache" in name[0]]


def test_an_engine_that_fails_is_counted_by_what_failed_before_and_within_a_stream(http, engine):
    engine.fail_after = 0
    assert http.post(PATH, json=CALL).status_code == 503
    engine.fail_after = 2
    assert http.post(PATH, json={**CALL, "stream": True}).status_code == 200
    assert calls(http) == {("chat", "engine_error"): 2}


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_a_span_below_its_callers_with_the_attributes_of_generative_ai(http, spans, stream):
    body = {**CALL, "stream": stream, "temperature": 0.5}
    answer = http.post(PATH, json=body, headers={"traceparent": PARENT})
    (span,) = ours(spans)
    assert (span.name, span.kind, span.status.status_code) == ("chat tiny", SpanKind.SERVER, StatusCode.UNSET)
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == tuple(PARENT.split("-")[1:3])
    attributes = dict(span.attributes)
    assert attributes.pop("gen_ai.usage.input_tokens") > 0
    assert attributes.pop("gen_ai.usage.output_tokens") == 8
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "stepwell",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.id": answer.headers["x-stepwell-step"],
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.conversation.id": "t1",
        "stepwell.policy_version": 3,
    }


def test_a_refused_call_is_a_span_with_its_error(http, spans):
    http.post(PATH, json={**CALL, "model": "gpt"})
    (span,) = ours(spans)
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "model_not_found")
    assert span.parent is None


def test_the_log_has_a_line_per_call_when_it_is_asked_for(http, caplog):
    with caplog.at_level(logging.INFO, "stepwell.calls"):
        http.post(PATH, json=CALL)
        http.post(PATH, content=b"{")
    answered, refused = (record.call for record in caplog.records if record.name == "stepwell.calls")
    assert (answered["dialect"], answered["outcome"], answered["trajectory"]) == ("chat", "ok", "t1")
    assert (refused["outcome"], answered["response_tokens"]) == ("invalid_request", 8)


def test_items_are_counted_by_what_became_of_them_and_other_refusals_by_their_code(renderer, pool):
    with TestClient(create_app(ScriptedEngine(renderer), renderer, pool)) as http:
        http.post("/v1/trajectories", json={"trajectories": [{"id": "a"}, {"id": "b"}]})
        http.post("/v1/trajectories", json={"id": "a"})
        http.post("/v1/trajectories", json={"trajectories": [{"id": "c"}, {"id": 7}]})
        http.post("/v1/trajectories", content=b"{")
        http.post("/v1/leases", json={"consumer": ""})
        http.get("/v1/trajectories/nobody")
        measured = metrics(http)
    items = [(dict(name[1:]), value) for name, value in measured.items() if name[0] == "stepwell_items_total"]
    assert {labels["kind"] for labels, _ in items} == {"trajectories"}
    counts = {labels["outcome"]: value for labels, value in items}
    assert counts == {"stored": 3, "duplicate": 1, "invalid_record": 1, "invalid_request": 1}
    assert measured["stepwell_refusals_total", ("code", "invalid_request")] == 1
    assert measured["stepwell_refusals_total", ("code", "not_found")] == 1
