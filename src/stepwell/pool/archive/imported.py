"""Text that was recorded elsewhere, made into steps: token ids are those that a renderer gives it.

They are marked `token_source="text"`, with log-probabilities of 0, so nobody trains on them as if they were sampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

import msgspec
import numpy as np

from stepwell.pool.archive.conversation import Conversation
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.renderer import Renderer
from stepwell.rendering.wire import answer_to_json, message_to_json, tool_to_json
from stepwell.types import FinishReason, Ids, Sampling, Step


class Renders(Protocol):
    """Gives text its token ids."""

    def __call__(self, messages: Sequence[Message], tools: Sequence[Tool], answer: Message) -> tuple[Ids, Ids]:
        """int32 [P] and int32 [R]: the prompt that `messages` make, and the answer to it.

        Raises:
            InvalidRequest: the chat template refuses the messages.
        """
        ...


def retokenised(renderer: Renderer) -> Renders:
    """Token ids by a model's own chat template and tokenizer; an answer ends with the end of its turn."""
    end = [min(renderer.eos_ids)] if renderer.eos_ids else []

    def renders(messages: Sequence[Message], tools: Sequence[Tool], answer: Message) -> tuple[Ids, Ids]:
        marks = renderer.thinking_marks
        thought = f"{marks[0]}\n{answer.reasoning}\n{marks[1]}\n\n" if marks and answer.reasoning else ""
        calls = renderer.write_calls(answer.tool_calls, tools) if answer.tool_calls else ""
        text = thought + answer.content + "\n" * bool(answer.content and calls) + calls
        return renderer.render(messages, tools), np.append(renderer.encode(text), np.array(end, np.int32))

    return renders


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One answer with what it was given to."""

    id: str
    asked: Conversation
    answer: Message
    model: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    finish_reason: FinishReason = "stop"
    created_at: float
    latency: float = 0.0


def step_of(said: Said, trajectory_id: str, index: int, renders: Renders, before: Step | None) -> Step:
    """The step that this answer was; `before` is the one that came before it, if any.

    Raises:
        InvalidRequest: the chat template refuses the messages.
        InvalidRecord: there is no such step, for instance because its prompt is empty.
    """
    prompt, response = renders(said.asked.messages, said.asked.tools, said.answer)
    context = np.concatenate((before.prompt_ids, before.response_ids)) if before else None
    goes_on = context is not None and np.array_equal(prompt[: len(context)], context)
    return Step(
        id=said.id,
        trajectory_id=trajectory_id,
        index=index,
        prompt_ids=prompt,
        response_ids=response,
        logprobs=np.zeros(len(response), np.float32),
        token_source="text",
        finish_reason=said.finish_reason,
        sampling=said.sampling,
        model=said.model,
        parent_id=before.id if before and goes_on else "",
        dialect="chat",
        request=_request(said),
        response=answer_to_json(said.answer),
        created_at=said.created_at,
        latency=said.latency,
    )


def _request(said: Said) -> str:
    body: dict[str, object] = {
        "model": said.model,
        "messages": [message_to_json(message) for message in said.asked.messages],
    }
    if said.asked.tools:
        body["tools"] = [tool_to_json(tool) for tool in said.asked.tools]
    return msgspec.json.encode(body).decode()


def content_id(prefix: str, content: bytes) -> str:
    """An id that is the same for the same content, so that importing it again changes nothing."""
    return f"{prefix}-{blake2b(content, digest_size=16).hexdigest()}"
