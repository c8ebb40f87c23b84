"""A conversation as text, for a judge to read: whatever dialect it was held in.

Where a client sends the whole history with each call, the last call holds everything. One that refers to an earlier
answer instead (OpenAI's `previous_response_id`, or a reference to an item of it) is read from the steps that hold it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stepwell.curation.rules.base import main_steps
from stepwell.rendering.wire import displayed
from stepwell.types import Step, Trajectory

_FIRST: Final = ("system", "instructions")
"""Where dialects have what comes before all messages."""
_MESSAGES: Final = ("messages", "input", "prompt")
"""Where dialects have the messages, or a single text."""
_PREVIOUS: Final = "previous_response_id"

_Turn = tuple[str, str]
"""Role and text."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was asked."""

    task: str
    """The user's first words; if there are none, the id of the task."""
    conversation: str
    """All that came before the final answer, a paragraph per message; empty if it was not recorded."""


def transcript(trajectory: Trajectory) -> Transcript:
    """What led to the final answer of the agent's own work."""
    turns = _conversation(main_steps(trajectory), {step.id: step for step in trajectory.steps})
    asked = next((text for role, text in turns if role == "user"), trajectory.info.task_id)
    return Transcript(asked, "\n\n".join(f"{role}: {text}" for role, text in turns))


def _conversation(main: Sequence[Step], steps: Mapping[str, Step]) -> list[_Turn]:
    """What the last of `main` answered: what it was sent, and before that what it refers to among all `steps`."""
    parts: list[list[_Turn]] = []
    head: list[_Turn] = []
    step = main[-1] if main else None
    while step is not None:
        body = _body(step.request)
        head = head or _head(body)  # new instructions take the place of old ones
        parts.append(_messages(body, steps))
        step = _continued(step, body, main, steps)
        if step is not None:
            parts.append([_answer(step)])
    return head + [turn for part in reversed(parts) for turn in part]


def _continued(step: Step, body: Mapping[str, Any], main: Sequence[Step], steps: Mapping[str, Step]) -> Step | None:
    """The earlier step whose answer a call goes on from without repeating it; if its id is foreign, the one before."""
    if not body.get(_PREVIOUS):
        return None
    named = _step_of(body[_PREVIOUS], steps)
    if named is not None and named.index < step.index:
        return named
    return next((other for other in reversed(main) if other.index < step.index), None)


def _body(request: str) -> dict[str, Any]:
    """What a call sent; empty if that is not known."""
    try:
        body = json.loads(request)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _head(body: Mapping[str, Any]) -> list[_Turn]:
    """What a call says before all messages."""
    return next(([_turn({"role": "system", "content": body[name]})] for name in _FIRST if body.get(name)), [])


def _messages(body: Mapping[str, Any], steps: Mapping[str, Step]) -> list[_Turn]:
    """The messages of a call, with the answers to which it only refers."""
    given: Any = next((body[name] for name in _MESSAGES if body.get(name)), [])
    turns: list[_Turn] = []
    last: Step | None = None
    for message in given if isinstance(given, list) else [{"role": "user", "content": given}]:
        referred = _referred(message, steps)
        if referred is None:
            turns.append(_turn(message))
        elif referred is not last:  # an answer has several items
            turns.append(_answer(referred))
        last = referred
    return turns


def _referred(item: Any, steps: Mapping[str, Step]) -> Step | None:
    """The step of which an item of OpenAI's responses says nothing but the id."""
    if not isinstance(item, dict) or "role" in item or item.get("type") not in (None, "item_reference"):
        return None
    return _step_of(item.get("id"), steps)


def _step_of(given: Any, steps: Mapping[str, Step]) -> Step | None:
    """The step of a response, `resp_STEP`, or of an item of one, such as `fc_STEP_2`."""
    name = str(given).partition("_")[2]
    return steps.get(name) or steps.get(name.rpartition("_")[0])


def _answer(step: Step) -> _Turn:
    try:
        said = json.loads(step.response)
    except (ValueError, RecursionError):
        said = step.response
    return "assistant", displayed(said)


def _turn(message: Any) -> _Turn:
    """A message, or an item that is none, such as a call in OpenAI's responses."""
    if isinstance(message, dict) and "role" in message:
        return str(message["role"]), displayed(message)
    kind = message.get("type") if isinstance(message, dict) else None
    return str(kind or "user"), message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
