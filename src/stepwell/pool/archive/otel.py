"""OpenTelemetry spans of model calls, as the collector's file exporter writes them: OTLP JSON. Read only.

Spans of one `gen_ai.conversation.id` become one trajectory, or, without one, those of one trace; its steps are in the
order in which the calls began. So a file is read as a whole, and should hold whole conversations. Ids are those of the
file with `otel-` before them: the calls may be in the pool already, recorded by a gateway that knew their tokens.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.errors import InvalidRecord, InvalidRequest
from stepwell.pool.archive.flaws import Flaws
from stepwell.pool.archive.genai import told
from stepwell.pool.archive.imported import Renders, Said, content_id, step_of
from stepwell.pool.archive.jsonl import lines
from stepwell.pool.archive.otlp import Export, Span, spans
from stepwell.types import Record, Sampling, Step, TrajectoryInfo

_SECOND = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    line: int
    agent: str
    said: Said


def read(path: Path, flaws: Flaws, renders: Renders) -> Iterator[Record]:
    """The records of each conversation: its trajectory, which stays open, and its steps."""
    conversations: dict[str, list[_Call]] = {}
    for number, export in lines(path, Export, flaws):
        for trajectory_id, call in _calls(path, number, export, flaws):
            conversations.setdefault(trajectory_id, []).append(call)
    for trajectory_id, calls in conversations.items():
        calls.sort(key=lambda call: call.said.created_at - call.said.latency)
        yield from _records(path, trajectory_id, calls, flaws, renders)


def _records(path: Path, trajectory_id: str, calls: list[_Call], flaws: Flaws, renders: Renders) -> Iterator[Record]:
    began = calls[0].said.created_at - calls[0].said.latency
    yield TrajectoryInfo(id=trajectory_id, agent=calls[0].agent, source="import", created_at=began)
    before: Step | None = None
    for call in calls:
        try:
            before = step_of(call.said, trajectory_id, before.index + 1 if before else 0, renders, before)
        except (InvalidRecord, InvalidRequest) as error:
            flaws.add(path, call.line, error)
            continue
        yield before


def _calls(path: Path, number: int, export: Export, flaws: Flaws) -> Iterator[tuple[str, _Call]]:
    """(trajectory id, call) of each model call whose messages were recorded; other spans are no flaws."""
    try:
        found = list(spans(export))
    except ValueError as error:
        flaws.add(path, number, error)
        return
    for span in found:
        try:
            call = _call(span, number)
        except (ValueError, InvalidRecord, RecursionError) as error:
            flaws.add(path, number, f"span {span.span_id}: {error}")
            continue
        if call is not None:
            yield _name(str(span.attributes.get("gen_ai.conversation.id") or span.trace_id)), call


def _call(span: Span, number: int) -> _Call | None:
    call = told(span)
    if call is None:
        return None
    attributes = span.attributes
    model = attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model") or ""
    said = Said(
        id=_name(f"{span.trace_id}-{span.span_id}"),
        asked=call.asked,
        answer=call.answer,
        model=str(model),
        sampling=_sampling(attributes),
        finish_reason=call.finish_reason,
        created_at=span.ended / _SECOND,
        latency=max(span.ended - span.began, 0) / _SECOND,
    )
    return _Call(line=number, agent=str(attributes.get("gen_ai.agent.name") or ""), said=said)


def _sampling(attributes: Mapping[str, Any]) -> Sampling:
    plain = Sampling()
    seed = attributes.get("gen_ai.request.seed")
    return Sampling(
        temperature=_number(attributes, "temperature", plain.temperature),
        top_p=_number(attributes, "top_p", plain.top_p),
        top_k=int(_number(attributes, "top_k", plain.top_k)),
        max_tokens=int(_number(attributes, "max_tokens", plain.max_tokens)),
        seed=seed if isinstance(seed, int) else None,
    )


def _number(attributes: Mapping[str, Any], name: str, default: float) -> float:
    value = attributes.get(f"gen_ai.request.{name}")
    return value if isinstance(value, int | float) and math.isfinite(value) else default


def _name(name: str) -> str:
    """An id of ours for one of theirs, which may hold what ours must not."""
    given = f"otel-{name}"
    fits = len(given) <= 256 and not set("/\0\n") & set(given)
    return given if fits else content_id("otel", name.encode("utf-8", "surrogatepass"))
