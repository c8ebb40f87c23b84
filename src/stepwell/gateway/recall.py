"""Conversations that a client refers to instead of sending them: read back from the steps that hold them."""

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from stepwell.errors import InvalidRequest, NotFound
from stepwell.gateway.dialects.base import ChatCall, Dialect
from stepwell.gateway.origin import in_past_of
from stepwell.pool.base import Pool
from stepwell.rendering.bridge import Asked
from stepwell.rendering.messages import Message
from stepwell.rendering.wire import answer_from_json
from stepwell.types import Step

_LONGEST: Final = 1000
"""Responses that may refer back to each other in one chain."""


class Recall:
    """Reads the pool; its methods without `async` block."""

    def __init__(self, pool: Pool, dialects: Mapping[str, Dialect]) -> None:
        """Read steps of `pool`, whose requests are in `dialects`."""
        self._pool = pool
        self._dialects = dialects

    async def asked(self, call: ChatCall, within: str | None = None) -> Asked:
        """The whole conversation of a call, which may refer to answers of the trajectory `within`, or of all.

        Raises:
            InvalidRequest: it refers to an answer that is not here, or not in that trajectory.
        """
        if call.previous_id or call.recalled:
            return await asyncio.to_thread(self._expanded, call, within)
        return Asked(messages=call.messages, tools=call.tools, options=call.template_options)

    def trajectory_of(self, step_id: str) -> str:
        """The trajectory of a step that a client refers to. Raises InvalidRequest if it is not here."""
        return self._step(step_id).trajectory_id

    def of_step(self, step: Step) -> Asked:
        """The conversation that a stored step answered; without messages if its request does not tell."""
        dialect = self._dialects.get(step.dialect)
        if dialect is None:
            return Asked(messages=())
        try:
            body = json.loads(step.request)
            return self._expanded(dialect.parse(body, step.request.encode()))
        except (InvalidRequest, ValueError):  # secrets that were removed, or a request of an older gateway
            return Asked(messages=())

    def _expanded(self, call: ChatCall, within: str | None = None) -> Asked:
        parts = [self._filled(call, within)]
        previous = call.previous_id
        while previous:
            if len(parts) > _LONGEST:
                raise InvalidRequest(f"more than {_LONGEST} responses refer to each other; send the history instead")
            step = self._step(previous, within)
            dialect = self._dialects.get(step.dialect)
            if dialect is None:
                raise InvalidRequest(f"response {previous!r} was not made by a call, so it cannot be continued")
            earlier = dialect.parse(json.loads(step.request), step.request.encode())
            parts.append((*self._filled(earlier, within), self._answer(previous, within)))
            previous = earlier.previous_id
        earlier_messages = tuple(message for part in reversed(parts[1:]) for message in part)
        if _has_head(parts[0]) and _has_head(earlier_messages):  # new instructions replace the old ones
            parts[0], earlier_messages = parts[0][1:], (parts[0][0], *earlier_messages[1:])
        return Asked(messages=(*earlier_messages, *parts[0]), tools=call.tools, options=call.template_options)

    def _filled(self, call: ChatCall, within: str | None) -> tuple[Message, ...]:
        """The call's messages, with the answers that it refers to put in their places."""
        answers = {position: self._answer(step_id, within) for position, step_id in call.recalled}
        return tuple(answers.get(position, message) for position, message in enumerate(call.messages))

    def _answer(self, step_id: str, within: str | None) -> Message:
        answer = answer_from_json(self._step(step_id, within).response)
        return answer or Message(role="assistant")

    def _step(self, step_id: str, within: str | None = None) -> Step:
        try:
            step = self._pool.step(step_id)
        except NotFound:
            step = None
        if step is None or (within not in (None, step.trajectory_id) and not in_past_of(self._pool, within, step)):
            raise InvalidRequest(f"the call refers to {step_id!r}, which is not stored here; send its content")
        return step


def _has_head(messages: tuple[Message, ...]) -> bool:
    return bool(messages) and messages[0].role == "system"
