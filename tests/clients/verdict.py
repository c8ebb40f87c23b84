"""Whether a client's run was captured as it should be; every complaint is one reason why its row is not green."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stepwell.rendering.wire import answer_from_json
from stepwell.types import Step
from tests.clients.stage import Performance, Request


def steps_of(performance: Performance) -> list[Step]:
    """All steps, in the order in which they were completed."""
    steps = [step for trajectory in performance.trajectories for step in trajectory.steps]
    return sorted(steps, key=lambda step: step.created_at)


def calls_of(performance: Performance) -> list[Request]:
    """The requests for an answer."""
    return [request for request in performance.requests if request.is_call]


def forks_of(performance: Performance) -> dict[str, int]:
    """How many steps of the main line are no continuation, by reason."""
    forks = Counter(step.fork for step in steps_of(performance) if step.fork and not step.side)
    return dict(sorted(forks.items()))


def drift_of(performance: Performance) -> int:
    """How many steps drifted."""
    return sum(step.drifted for step in steps_of(performance))


def main_trajectories(performance: Performance) -> int:
    """Trajectories with a step that is the agent's own work."""
    return sum(any(not step.side for step in trajectory.steps) for trajectory in performance.trajectories)


def complaints(performance: Performance) -> list[str]:
    """Why the run is not as it should be; empty: it is."""
    return [*_about_client(performance), *_about_capture(performance), *_about_ids(performance)]


def _about_client(performance: Performance) -> Iterator[str]:
    client, ended = performance.client, performance.ended
    if ended.status != 0:
        yield "killed after its time" if ended.status is None else f"exit status {ended.status}"
    calls = calls_of(performance)
    if refused := Counter(request.status for request in performance.requests if request.status >= 400):
        yield "refused: " + ", ".join(f"{count} with {status}" for status, count in sorted(refused.items()))
    if client.streams and not any(request.streamed for request in calls):
        yield "nothing was streamed"
    main = [step for step in steps_of(performance) if not step.side]
    if client.calls_tools and not any(client.tool_result in step.request for step in main):
        yield "no tool result came back"
    answer = answer_from_json(main[-1].response) if main else None
    if answer is None:
        yield "no answer"
    elif answer.tool_calls and not client.lesson.last:
        yield "it ended with a call"
    elif not answer.tool_calls and _letters(answer.content) not in _letters(_said(ended.output)):
        yield "the last answer is not in the client's output"


def _about_capture(performance: Performance) -> Iterator[str]:
    steps, calls = steps_of(performance), calls_of(performance)
    if len(steps) != len(calls):
        yield f"{len(steps)} steps of {len(calls)} calls"
    if aborted := sum(step.finish_reason == "abort" for step in steps):
        yield f"{aborted} aborted"
    if dialects := {step.dialect for step in steps} - {performance.client.dialect}:
        yield f"other dialects: {', '.join(sorted(dialects))}"
    wanted, found = performance.client.trajectories, main_trajectories(performance)
    if found != wanted:
        yield f"{found} trajectories in place of {wanted}"
    allowed = {"root": wanted, **performance.client.forks}
    for reason, count in forks_of(performance).items():
        if count > allowed.get(reason, 0):
            yield f"{count} forks by {reason}"


def _about_ids(performance: Performance) -> Iterator[str]:
    steps = steps_of(performance)
    stored = Counter((tuple(step.prompt_ids.tolist()), tuple(step.response_ids.tolist())) for step in steps)
    played = Counter((play.prompt_ids, tuple(play.response_ids)) for play in performance.played)
    if missing := (played - stored).total() + (stored - played).total():
        yield f"{missing} steps with other ids than the engine's"
    known = {(play.prompt_ids, tuple(play.response_ids)): play.logprobs for play in performance.played}
    for step in steps:
        logprobs = known.get((tuple(step.prompt_ids.tolist()), tuple(step.response_ids.tolist())))
        if logprobs is not None and not np.array_equal(np.array(logprobs, np.float32), step.logprobs):
            yield "other log-probabilities than the engine's"
    if broken := _broken_joins(steps):
        yield f"{broken} steps do not continue their parent's ids"


def _broken_joins(steps: Sequence[Step]) -> int:
    """Steps that claim to go on from their parent id for id, and do not."""
    by_id = {step.id: step for step in steps}
    broken = 0
    for step in steps:
        if step.parent_id and not step.fork:
            parent = by_id[step.parent_id]
            whole = [*parent.prompt_ids.tolist(), *parent.response_ids.tolist()]
            broken += step.prompt_ids[: len(whole)].tolist() != whole
    return broken


def _said(output: str) -> str:
    """A client's output with the texts in it that are written as JSON, on one line or over all."""
    found = [output]
    for text in (output, *output.splitlines()):
        try:
            found.extend(_texts(json.loads(text)))
        except ValueError:
            continue
    return "\n".join(found)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _letters(text: str) -> str:
    """Without what terminals and trimming change."""
    return "".join(character for character in text if character.isascii() and character.isalnum())
