"""What can be seen of the gateway from outside: Prometheus metrics, OpenTelemetry spans, and a log line per call.

Metric names and labels: docs/reference/gateway.md. Spans follow OpenTelemetry's conventions for generative AI; without
a configured SDK they cost next to nothing and go nowhere.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from stepwell.engines.base import Engine, ReportsCache
from stepwell.gateway.dialects.base import Answer, ChatCall
from stepwell.gateway.gate import Gate
from stepwell.gateway.problems import Problem
from stepwell.types import Step

_calls: Final = logging.getLogger("stepwell.calls")
_FAILED_SECONDS: Final = 30.0
"""For so long the pool counts as failed: nothing but a call finds out that it works again, and an unready gateway may
get none."""
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Meters:
    """The metrics of one gateway."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        """Start at zero; what can be read off `engine` and `gate` is read when somebody asks."""
        self.pool_failed_at: float | None = None
        """When (time.monotonic) the pool failed to store a step; None if it has stored one since."""
        self.registry = registry = CollectorRegistry()
        self.calls = Counter(
            "stepwell_calls",
            "Calls answered, by dialect and outcome (ok, or the error's code)",
            ["dialect", "outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "stepwell_call_seconds",
            "From the request to the end of the answer",
            ["dialect"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.first = Histogram(
            "stepwell_first_token_seconds",
            "From the request to the first token of a stream",
            ["dialect"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.steps = Counter(
            "stepwell_steps", "Steps stored", ["finish_reason", "fork", "side", "token_source"], registry=registry
        )
        self.items = Counter(
            "stepwell_items",
            "Items submitted, by kind and outcome (stored, duplicate, or the error's code)",
            ["kind", "outcome"],
            registry=registry,
        )
        self.refusals = Counter(
            "stepwell_refusals",
            "Other requests of our own routes that were refused, by the error's code",
            ["code"],
            registry=registry,
        )
        self.tokens = Counter(
            "stepwell_tokens",
            "Tokens of stored steps: prompt, cached (of the prompt), response",
            ["kind"],
            registry=registry,
        )
        self._prompt, self._cached, self._response = map(self.tokens.labels, ("prompt", "cached", "response"))
        # to find a child costs as much as to count on it, and there are few of them
        self.call_with = lru_cache(256)(self.calls.labels)
        self.seconds_with = lru_cache(256)(self.seconds.labels)
        self.first_with = lru_cache(256)(self.first.labels)
        self._step_with = lru_cache(256)(self.steps.labels)
        self.item_with = lru_cache(256)(self.items.labels)
        _read_off(registry, engine, gate)

    def stored(self, step: Step, cached: int) -> None:
        """A step is in the pool; `cached` of its prompt tokens were an earlier step's."""
        self.pool_failed_at = None
        self._step_with(step.finish_reason, step.fork, step.side, step.token_source).inc()
        self._prompt.inc(len(step.prompt_ids))
        self._cached.inc(cached)
        self._response.inc(len(step.response_ids))

    def stored_failed(self) -> None:
        """A step could not be stored: the pool failed."""
        self.pool_failed_at = time.monotonic()

    @property
    def pool_well(self) -> bool:
        """Whether the pool stored what it was last given; a failure is forgotten in time, so that calls try again."""
        return self.pool_failed_at is None or time.monotonic() - self.pool_failed_at >= _FAILED_SECONDS


def _read_off(registry: CollectorRegistry, engine: Engine, gate: Gate) -> None:
    """Have it ask `engine` and `gate` for what they know."""
    running = Gauge("stepwell_calls_running", "Calls under way", registry=registry)
    running.set_function(lambda: gate.running)
    waiting = Gauge("stepwell_calls_waiting", "Calls that wait for the end of a pause", registry=registry)
    waiting.set_function(lambda: gate.waiting)
    version = Gauge("stepwell_policy_version", "Version of the weights that would sample next", registry=registry)
    version.set_function(lambda: engine.policy_version)
    if isinstance(engine, ReportsCache):
        registry.register(_PrefixCache(engine))


class _PrefixCache(Collector):
    """The engine's own counts, read when somebody asks; names and units are vLLM's."""

    def __init__(self, engine: ReportsCache) -> None:
        self._engine = engine

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See `Collector`."""
        use = self._engine.cache_use
        asked, found = "Prompt tokens of requests to the engine, if it is local", "Those that its prefix cache held"
        yield CounterMetricFamily("stepwell_prefix_cache_queries", asked, value=use.prompt_tokens)
        yield CounterMetricFamily("stepwell_prefix_cache_hits", found, value=use.reused_tokens)


class Watch:
    """One call, from the request to the end of its answer."""

    def __init__(self, meters: Meters, dialect: str, headers: Mapping[str, str]) -> None:
        """The request has arrived."""
        self._meters = meters
        self._dialect = dialect
        self._begun = time.perf_counter()
        self._ended = False
        self._span = _span(headers)

    def asked(self, call: ChatCall) -> None:
        """The request is understood."""
        if self._span.is_recording():
            self._span.update_name(f"chat {call.model}")
            self._span.set_attributes(
                {
                    "gen_ai.operation.name": "text_completion" if call.prompt is not None else "chat",
                    "gen_ai.provider.name": "stepwell",
                    "gen_ai.request.model": call.model,
                    "gen_ai.request.temperature": call.temperature,
                    "gen_ai.request.top_p": call.top_p,
                    "gen_ai.request.choice.count": call.choices,
                }
            )

    def first_token(self) -> None:
        """The first token of a stream is there."""
        self._meters.first_with(self._dialect).observe(time.perf_counter() - self._begun)

    def answered(self, answers: Sequence[Answer]) -> None:
        """The call has its answer."""
        steps = [answer.step for answer in answers]
        if self._span.is_recording():
            self._span.set_attributes(
                {
                    "gen_ai.response.id": steps[0].id,
                    "gen_ai.response.model": steps[0].model,
                    "gen_ai.response.finish_reasons": [answer.end for answer in answers],
                    "gen_ai.usage.input_tokens": len(steps[0].prompt_ids),
                    "gen_ai.usage.output_tokens": sum(len(step.response_ids) for step in steps),
                    "gen_ai.conversation.id": steps[0].trajectory_id,
                    "stepwell.policy_version": steps[0].policy_version_max,
                }
            )
        self._end("ok", "")
        if _calls.isEnabledFor(logging.INFO):
            tokens = {"prompt_tokens": len(steps[0].prompt_ids), "response_tokens": sum(map(_sampled, steps))}
            place = {"trajectory": steps[0].trajectory_id, "step": ",".join(step.id for step in steps)}
            _calls.info("call answered", extra={"call": self._line("ok") | tokens | place})

    def refused(self, problem: Problem) -> None:
        """The call has no answer, or not a whole one."""
        self._end(problem.code, problem.message)
        if _calls.isEnabledFor(logging.INFO):
            _calls.info("call refused", extra={"call": self._line(problem.code) | {"message": problem.message}})

    def left(self) -> None:
        """The client went away first, unless the call has ended already."""
        if not self._ended:
            self._end("client_gone", "the client closed the connection")
            _calls.info("call left by its client", extra={"call": self._line("client_gone")})

    def _end(self, outcome: str, failure: str) -> None:
        self._ended = True
        self._meters.call_with(self._dialect, outcome).inc()
        self._meters.seconds_with(self._dialect).observe(time.perf_counter() - self._begun)
        if failure and self._span.is_recording():
            self._span.set_attribute("error.type", outcome)
            self._span.set_status(StatusCode.ERROR, failure)
        self._span.end()

    def _line(self, outcome: str) -> dict[str, object]:
        milliseconds = round((time.perf_counter() - self._begun) * 1e3, 1)
        return {"dialect": self._dialect, "outcome": outcome, "ms": milliseconds}


def _span(headers: Mapping[str, str]) -> trace.Span:
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return trace.INVALID_SPAN  # nobody has set up an SDK: not even the headers need be read
    tracer = trace.get_tracer("stepwell.gateway")
    return tracer.start_span("chat", context=propagate.extract(headers), kind=SpanKind.SERVER)


def _sampled(step: Step) -> int:
    return len(step.response_ids)
