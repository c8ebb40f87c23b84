"""A conversation as text, for a judge to read: whatever dialect it was held in."""

import json
from dataclasses import dataclass
from typing import Any, Final

from stepwell.curation.rules.base import main_steps
from stepwell.rendering.wire import displayed
from stepwell.types import Trajectory

_FIRST: Final = ("system", "instructions")
"""Where dialects have what comes before all messages."""
_MESSAGES: Final = ("messages", "input", "prompt")
"""Where dialects have the messages, or a single text."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was asked."""

    task: str
    """The user's first words; if there are none, the id of the task."""
    conversation: str
    """All that came before the final answer, a paragraph per message; empty if it was not recorded."""


def transcript(trajectory: Trajectory) -> Transcript:
    """What led to the final answer of the agent's own work."""
    steps = main_steps(trajectory)
    turns = _turns(steps[-1].request) if steps else []
    asked = next((text for role, text in turns if role == "user"), trajectory.info.task_id)
    return Transcript(asked, "\n\n".join(f"{role}: {text}" for role, text in turns))


def _turns(request: str) -> list[tuple[str, str]]:
    """(role, text) of each message that a call sent."""
    try:
        body = json.loads(request)
    except (ValueError, RecursionError):
        return []
    if not isinstance(body, dict):
        return []
    first = next(({"role": "system", "content": body[name]} for name in _FIRST if body.get(name)), None)
    given: Any = next((body[name] for name in _MESSAGES if body.get(name)), [])
    messages = given if isinstance(given, list) else [{"role": "user", "content": given}]
    return [_turn(message) for message in ([first] if first else []) + messages]


def _turn(message: Any) -> tuple[str, str]:
    """A message, or an item that is none, such as a call in OpenAI's responses."""
    if isinstance(message, dict) and "role" in message:
        return str(message["role"]), displayed(message)
    kind = message.get("type") if isinstance(message, dict) else None
    return str(kind or "user"), message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
