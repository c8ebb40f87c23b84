"""A trajectory's steps as a conversation, read from what was stored, whatever that is, a few steps at a time."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, get_args

from stepwell.curation.selection import Selection
from stepwell.errors import NotFound
from stepwell.pool.base import Pool, TrajectorySummary
from stepwell.pool.outline import StepOutline
from stepwell.pool.readiness import facts_of
from stepwell.rendering.wire import displayed
from stepwell.types import Annotation, Step, Verdict

Parts = tuple[tuple[str, float], ...]
"""(name, value) of reward parts."""
EVERY: Final = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation, as text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a trajectory without the tokens and texts of its steps. Equal as long as nothing is added."""

    summary: TrajectorySummary
    steps: tuple[StepOutline, ...]
    notes: tuple[Annotation, ...]
    """All that was ever said of it and its steps, oldest first."""

    @property
    def why(self) -> str:
        """What was said about the end: the error of a failed trajectory, say."""
        return next((note.text for note in reversed(self.notes) if note.kind == "end"), "")

    @property
    def tags(self) -> tuple[str, ...]:
        """Labels that it or a step of it has, sorted."""
        return facts_of(self.notes).tags

    @property
    def reward_parts(self) -> Parts:
        """Each part, summed over the steps and the whole."""
        sums: dict[str, list[float]] = defaultdict(list)
        for (_, name), value in facts_of(self.notes).rewards.items():
            sums[name].append(value)
        return tuple((name, math.fsum(values)) for name, values in sorted(sums.items()))

    @property
    def remarks(self) -> tuple[Annotation, ...]:
        """What was said of the trajectory and of its steps, but for rewards and the end."""
        return tuple(note for note in self.notes if note.kind not in ("reward", "end"))

    def rewards(self) -> Mapping[str, Parts]:
        """Reward parts by step id; one of the whole trajectory counts at the last step of the agent's own work."""
        own = [step.id for step in self.steps if not step.side] or [step.id for step in self.steps]
        parts: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for (target, name), value in facts_of(self.notes).rewards.items():
            place = str(target) if target is not None else own[-1] if own else ""
            parts[place].append((name, value))
        return {step_id: tuple(given) for step_id, given in parts.items()}

    def place_of(self, index: int) -> int:
        """Where the step with this index is among `steps`; the next one's place if there is none."""
        return sum(step.index < index for step in self.steps)


@dataclass(frozen=True, slots=True)
class StepView:
    """One step as the conversation saw it."""

    step: Step
    seen: tuple[Turn, ...]
    """Messages that the policy sees for the first time at this step."""
    answer: Turn | None
    """What the client received; None if the step was not made by a chat call."""
    rewritten: bool
    """The client changed earlier messages, so `seen` begins before what is new."""


def read_head(pool: Pool, trajectory_id: str) -> Head:
    """Raises NotFound and PoolError."""
    notes = tuple(pool.notes(trajectory_id))
    found = pool.trajectories(Selection(trajectory_ids=(trajectory_id,), verdicts=EVERY), limit=1)
    if not found:
        raise NotFound(f"no trajectory {trajectory_id!r}")
    return Head(found[0][1], tuple(pool.outline(trajectory_id)), notes)


def read_views(pool: Pool, head: Head, start: int, stop: int) -> list[StepView]:
    """The steps at the places from `start` until before `stop`."""
    if not head.steps[start:stop]:
        return []
    before = next((place for place in range(start - 1, -1, -1) if not head.steps[place].side), start)
    steps = pool.steps(head.summary.info.id, first=head.steps[before].index, limit=stop - before)
    return step_views(steps)[start - before :]


def step_views(steps: Sequence[Step]) -> list[StepView]:
    """The steps with the part of the conversation that each of them added to that of the one before.

    A call beside the agent's work is a conversation of its own.
    """
    views: list[StepView] = []
    before = _Conversation((), None)
    for step in steps:
        own = _Conversation(_request_turns(step.request), _answer(step.response))
        views.append(_view(step, own, _Conversation((), None) if step.side else before))
        before = before if step.side else own
    return views


class _Conversation(NamedTuple):
    asked: tuple[Turn, ...]
    answer: Turn | None


def _view(step: Step, own: _Conversation, before: _Conversation) -> StepView:
    kept = _common_prefix(before.asked, own.asked)
    rewritten = kept < len(before.asked)
    echoed = not rewritten and before.answer is not None and own.asked[kept : kept + 1] == (before.answer,)
    return StepView(step, own.asked[kept + echoed :], own.answer, rewritten)


def gaps(steps: Sequence[StepOutline]) -> dict[str, float]:
    """By step id: seconds from the answer of the step before to the request, in which the agent or its tools worked."""
    return {step.id: step.created_at - step.latency - before.created_at for before, step in pairwise(steps)}


def pretty(text: str) -> str:
    """Stored JSON with indentation; whatever is no JSON as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


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
