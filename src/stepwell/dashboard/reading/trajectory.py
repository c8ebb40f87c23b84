"""A trajectory's steps as a conversation, read from what was stored, whatever that is."""

import json
from dataclasses import dataclass
from typing import Any

from stepwell.rendering.wire import displayed
from stepwell.types import Step, Trajectory


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation, as text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class StepView:
    """One step as the conversation saw it."""

    step: Step
    reward: float
    seen: tuple[Turn, ...]
    """Messages that the policy sees for the first time at this step."""
    answer: Turn | None
    """What the client received; None if the step was not made by a chat call."""
    rewritten: bool
    """The client changed earlier messages, so `seen` begins before what is new."""


def read_steps(trajectory: Trajectory) -> list[StepView]:
    """The steps with the part of the conversation that each of them added."""
    views: list[StepView] = []
    before: tuple[Turn, ...] = ()
    answered: Turn | None = None
    for step, reward in zip(trajectory.steps, trajectory.step_rewards, strict=True):
        turns = _request_turns(step.request)
        kept = _common_prefix(before, turns)
        rewritten = kept < len(before)
        echoed = not rewritten and answered is not None and turns[kept : kept + 1] == (answered,)
        answer = _answer(step.response)
        views.append(StepView(step, reward, turns[kept + echoed :], answer, rewritten))
        before, answered = turns, answer
    return views


def _common_prefix(left: tuple[Turn, ...], right: tuple[Turn, ...]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _request_turns(request: str) -> tuple[Turn, ...]:
    """The messages of a stored request. Pages must show whatever is stored, so what is no chat is shown as it is."""
    if not request:
        return ()
    shape = _parse(request)
    messages = (shape.get("messages") or shape.get("input")) if isinstance(shape, dict) else None
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        return (Turn("request", request),)
    # Some APIs have the system's words beside the messages.
    head = shape.get("system") or shape.get("instructions")
    system = [{"role": "system", "content": head}] if head else []
    return tuple(_turn(message) for message in [*system, *messages])


def _answer(response: str) -> Turn | None:
    if not response:
        return None
    message = _parse(response)
    return _turn(message) if isinstance(message, dict) else Turn("assistant", response)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _turn(message: Any) -> Turn:
    fields = message if isinstance(message, dict) else {}
    text = displayed(message) or ("" if "content" in fields else json.dumps(message, ensure_ascii=False))
    return Turn(str(fields.get("role") or fields.get("type") or "message"), text)
