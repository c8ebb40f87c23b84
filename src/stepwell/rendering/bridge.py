"""The next prompt from ids already seen, so that what the engine sampled is never tokenised again.

A client sends the whole conversation as text each time, and tokenising that anew may split the policy's own words
differently: the trainer would then see a context that the policy never was in. The bridge keeps the earlier step's
ids and tokenises only what is new. Clients also rewrite what they echo (arguments re-serialised, white space
stripped); `restore` puts the words back as they were sampled.
"""

import bisect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.rendering.messages import Message
from stepwell.rendering.renderer import Renderer
from stepwell.types import Ids

AnswerKey = tuple[str, tuple[tuple[str, str], ...]]
"""What stays the same when a client echoes an answer: stripped content, and name and parsed arguments of each call."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """A step that a later prompt may extend."""

    ids: Ids
    """int32 [P+R]: prompt and response."""
    text: str
    """Their exact text, special tokens included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bridged:
    """A prompt and where it comes from."""

    prompt_ids: Ids
    """int32 [P]."""
    reused: int
    """How many of them, from the start, are an earlier step's own ids."""
    fork: str
    """Why no earlier step was extended; empty if one was."""


def seen(renderer: Renderer, prompt_ids: Ids, response_ids: Sequence[int] | Ids) -> Seen:
    """A step as the bridge needs it."""
    ids = np.concatenate([prompt_ids, np.asarray(response_ids, np.int32)])
    return Seen(ids=ids, text=renderer.decode(ids, skip_special=False))


def bridge(renderer: Renderer, earlier: Iterable[Seen], text: str) -> Bridged:
    """The ids of `text`, those of the longest earlier step that it extends kept as they are.

    Law: decoding the result gives `text` whenever an earlier step was extended.
    """
    candidates = sorted(earlier, key=lambda step: len(step.text), reverse=True)
    for step in candidates:
        if not text.startswith(step.text):
            continue
        ids = np.concatenate([step.ids, renderer.encode(text[len(step.text) :])])
        # Some tokenizers put a space before whatever they encode; the join would then not be the conversation's text.
        if renderer.decode(ids, skip_special=False) == text:
            return Bridged(prompt_ids=ids, reused=len(step.ids), fork="")
        return Bridged(prompt_ids=renderer.encode(text), reused=0, fork="the tokenizer cannot continue at the join")
    return Bridged(prompt_ids=renderer.encode(text), reused=0, fork=_reason(candidates, text))


def _reason(candidates: Sequence[Seen], text: str) -> str:
    if not candidates:
        return "there is no earlier step"
    shared = max(_shared_length(step.text, text) for step in candidates)
    return f"the conversation departs from every earlier step by character {shared}"


def _shared_length(left: str, right: str) -> int:
    return bisect.bisect_left(range(len(left)), True, key=lambda n: not right.startswith(left[: n + 1]))


def restore(messages: Sequence[Message], sampled: Mapping[AnswerKey, str]) -> list[Message]:
    """The conversation with each echoed answer replaced by the text that was sampled, calls included."""
    return [_restore(message, sampled) if message.role == "assistant" else message for message in messages]


def _restore(message: Message, sampled: Mapping[AnswerKey, str]) -> Message:
    text = sampled.get(answer_key(message))
    return message if text is None else Message(role="assistant", content=text)


def answer_key(answer: Message) -> AnswerKey:
    """By what an answer is recognised when it comes back; call ids are left out, because clients rename them."""
    calls = tuple((call.name, _canonical(call.arguments)) for call in answer.tool_calls)
    return answer.content.strip(), calls


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments.strip()
