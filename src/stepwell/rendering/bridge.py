"""The next prompt from ids already seen, so that what the engine sampled is never tokenised again.

A client sends the whole conversation as text each time, and tokenising that anew may split the policy's own words
differently: the trainer would then see a context that the policy never was in. The bridge keeps the earlier step's
ids and tokenises only what is new. Clients also rewrite what they echo (arguments re-serialised, white space
stripped); the words are put back as they were sampled. Where the chat template itself writes the past differently than
it was (drops old reasoning, say), the prompt is what the template says, and the step records a fork.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from stepwell.errors import InvalidRequest
from stepwell.rendering.history import AnswerKey, answer_key, extended_key, history_keys, is_throwaway, tools_key
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.pieces import message_of
from stepwell.rendering.renderer import Renderer
from stepwell.types import Fork, Ids

_MARK: Final = "stepwell-answer-9c41f7e2b0-"
"""Stands for an answer while its place in a rendered conversation is looked for."""
AS_SENT: Final = "reasoning_as_sent"
"""Option of a conversation: reasoning that an answer lacks was left out on purpose. Without it, it is put back, since
most clients only lose it."""
_WINDOW: Final = 8
"""Tokens before a join that can change how those behind it decode."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A conversation that wants its next answer."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the chat template."""

    @cached_property
    def keys(self) -> list[bytes]:
        """The history keys of the first 0, 1, …, n messages."""
        return history_keys(self.messages)

    @cached_property
    def place(self) -> dict[bytes, int]:
        """How many messages each of the keys stands for."""
        return {key: length for length, key in enumerate(self.keys)}

    @cached_property
    def tools_key(self) -> bytes:
        """Equal for the same tools."""
        return tools_key(self.tools)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """A step that a later prompt may extend."""

    step_id: str
    ids: Ids
    """int32 [P+R]: prompt and response."""
    text: str
    """Their exact text, special tokens included."""
    answer_start: int
    """Where in `text` the answer begins, characters."""
    answer_ids: int
    """Where in `ids` it begins."""
    answer: Message
    """As it was parsed when it was sampled."""
    request_key: bytes = b""
    """Of the messages that it answers; empty if it answers none."""
    history_key: bytes = b""
    """Of these and the answer."""
    tools_key: bytes = b""
    throwaway: bool = False
    """Whether it had a message in its prompt that the client will not send again."""

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.text) + self.ids.nbytes + 500


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bridged:
    """A prompt and where it comes from."""

    prompt_ids: Ids
    """int32 [P]."""
    text: str
    reused: int
    """How many ids, from the start, are an earlier step's own."""
    parent_id: str
    """That step, or the one that this conversation goes on from without beginning with its ids; or empty."""
    fork: Fork


class Memory:
    """What is kept of one trajectory: of the newest steps everything, of the others the answer."""

    def __init__(self, recent: int = 64) -> None:
        """Keep the prompts of at most `recent` steps: enough for many subagents that take turns in one trajectory."""
        self.recent: deque[Seen] = deque()
        self.size = 0
        """Bytes that are kept, about."""
        self._most = recent
        self._by_history: dict[bytes, _Sampled] = {}
        self._by_answer: dict[AnswerKey, _Sampled] = {}

    def add(self, step: Seen) -> None:
        """Remember one more step."""
        self.recent.append(step)
        raw, ids = step.text[step.answer_start :], step.ids[step.answer_ids :]
        sampled = _Sampled(raw, ids, step.answer)
        self._by_history[step.history_key] = self._by_answer[answer_key(step.answer)] = sampled
        self.size += step.size + 2 * (len(raw) + ids.nbytes)
        if len(self.recent) > self._most:
            self.size -= self.recent.popleft().size

    def sampled(self, history_key: bytes, message: Message) -> "_Sampled | None":
        """What was sampled for an assistant message that completes a history, else for one that reads the same."""
        if message.role != "assistant":
            return None
        return self._by_history.get(history_key) or self._by_answer.get(answer_key(message))


@dataclass(frozen=True, slots=True)
class _Sampled:
    raw: str
    """With special tokens and the end-of-turn mark, if it was sampled."""
    ids: Ids
    """Its tokens."""
    answer: Message


def seen(
    renderer: Renderer,
    step_id: str,
    asked: Asked,
    bridged: "Bridged",
    response_ids: Ids,
    answer: Message,
    prefill: str = "",
    prefill_ids: int = 0,
) -> Seen:
    """What is kept of a step that answered `asked` (without messages: a plain prompt) from the prompt `bridged`.

    `prefill` is the end of the prompt's text that already belongs to the answer, in `prefill_ids` tokens.
    """
    request_key = asked.keys[-1]
    return Seen(
        step_id=step_id,
        ids=np.concatenate([bridged.prompt_ids, response_ids]),
        text=bridged.text + renderer.decode(response_ids, skip_special=False),
        answer_start=len(bridged.text) - len(prefill),
        answer_ids=len(bridged.prompt_ids) - prefill_ids,
        answer=answer,
        request_key=request_key,
        history_key=extended_key(request_key, answer) if asked.messages else b"",
        tools_key=asked.tools_key,
        throwaway=any(map(is_throwaway, asked.messages)),
    )


def bridge(renderer: Renderer, memory: Memory, asked: Asked) -> Bridged:
    """The ids of a conversation, those of the longest earlier step that it extends kept as they are.

    Law: decoding the result gives `text` whenever an earlier step was extended.

    Raises:
        InvalidRequest: the chat template refuses the conversation.
    """
    text = _restored(renderer, memory, asked)
    longest = _extended(memory, text)
    parent, fork = _relation(memory, asked)
    if longest is not None and not _goes_further(asked, parent, longest):
        return _joined(renderer, longest, text, len(longest.text))
    if parent is None or fork == "client":
        return _afresh(_spliced(renderer, memory, asked, text), text, parent, fork)
    as_parsed = _structured(renderer, memory, asked)
    request = replace(asked, messages=asked.messages[: asked.keys.index(parent.request_key)])
    end = _same_answer(renderer, parent, as_parsed, _structured(renderer, memory, request), asked.tools)
    if end is None:
        return _afresh(_spliced(renderer, memory, asked, text), text, parent, "template")
    return _joined(renderer, parent, as_parsed, end)


def bridge_text(renderer: Renderer, memory: Memory, text: str) -> Bridged:
    """`bridge` for a prompt that is plain text, without messages."""
    longest = _extended(memory, text)
    if longest is not None:
        return _joined(renderer, longest, text, len(longest.text))
    return _afresh(renderer.encode(text), text, None, "client" if memory.recent else "root")


def bridge_ids(renderer: Renderer, memory: Memory, prompt_ids: Ids) -> Bridged:
    """`bridge` for a prompt that comes as ids, which are taken as they are."""
    begun = [step for step in memory.recent if np.array_equal(prompt_ids[: len(step.ids)], step.ids)]
    parent = max(begun, key=lambda step: len(step.ids), default=None)
    fork: Fork = "" if parent else "client" if memory.recent else "root"
    return Bridged(
        prompt_ids=prompt_ids,
        text=renderer.decode(prompt_ids, skip_special=False),
        reused=len(parent.ids) if parent else 0,
        parent_id=parent.step_id if parent else "",
        fork=fork,
    )


def _extended(memory: Memory, text: str) -> Seen | None:
    begun = [step for step in memory.recent if text.startswith(step.text)]
    return max(begun, key=lambda step: len(step.text), default=None)


def _joined(renderer: Renderer, step: Seen, text: str, end: int) -> Bridged:
    """The step's ids, then those of `text` from character `end` on."""
    tail = text[end:]
    tail_ids = renderer.encode(tail)
    before = step.ids[-_WINDOW:]
    # Some tokenizers put a space before whatever they encode; the join would then not be the conversation's text.
    joined = renderer.decode(np.concatenate([before, tail_ids]), skip_special=False)
    if joined != renderer.decode(before, skip_special=False) + tail:
        return _afresh(renderer.encode(text), text, step, "tokenizer")
    ids = np.concatenate([step.ids, tail_ids])
    return Bridged(prompt_ids=ids, text=step.text + tail, reused=len(step.ids), parent_id=step.step_id, fork="")


def _afresh(prompt_ids: Ids, text: str, parent: Seen | None, fork: Fork) -> Bridged:
    return Bridged(prompt_ids=prompt_ids, text=text, reused=0, parent_id=parent.step_id if parent else "", fork=fork)


def _spliced(renderer: Renderer, memory: Memory, asked: Asked, text: str) -> Ids:
    """The ids of `text`, with each known answer that stands in it as it was sampled in the tokens that were sampled.

    Where the answers stand is found by rendering the conversation with marks in their places.
    """
    sampled = [known for _, known in _sampled_answers(memory, asked)]
    if not any(sampled):
        return renderer.encode(text)
    marked = [
        message if known is None else Message(role="assistant", content=f"{_MARK}{place};")
        for place, (message, known) in enumerate(zip(asked.messages, sampled, strict=True))
    ]
    try:
        first, *rest = re.split(f"{_MARK}([0-9]+);", renderer.text(marked, asked.tools, asked.options))
    except InvalidRequest:
        return renderer.encode(text)
    pieces: list[Ids] = []
    plain, at = 0, len(first)  # what is not tokenised yet begins at `plain`
    for place, following in zip(rest[::2], rest[1::2], strict=True):
        known = sampled[int(place)]
        raw = "" if known is None else _without_end(renderer, known.raw)
        if known is not None and raw and text.startswith(raw, at):
            pieces += [renderer.encode(text[plain:at]), known.ids[: len(known.ids) - (raw != known.raw)]]
            plain = at = at + len(raw)
        at = text.find(following, at) + len(following)
    ids = np.concatenate([*pieces, renderer.encode(text[plain:])])
    return ids if renderer.decode(ids, skip_special=False) == text else renderer.encode(text)


def _restored(renderer: Renderer, memory: Memory, asked: Asked) -> str:
    """The conversation with each echoed answer replaced by the text that was sampled, calls and reasoning included."""
    sampled = _sampled_answers(memory, asked)
    restored = [
        message if known is None else Message(role="assistant", content=_without_end(renderer, known.raw))
        for message, known in sampled
    ]
    try:
        return renderer.text(restored, asked.tools, asked.options)
    except InvalidRequest:  # a template may want to see the calls that results answer
        return _structured(renderer, memory, asked)


def _structured(renderer: Renderer, memory: Memory, asked: Asked) -> str:
    """The conversation with each echoed answer replaced by the message that was parsed from what was sampled."""
    known = [message if known is None else known.answer for message, known in _sampled_answers(memory, asked)]
    return renderer.text(known, asked.tools, asked.options)


def _sampled_answers(memory: Memory, asked: Asked) -> list[tuple[Message, _Sampled | None]]:
    if not memory.recent:
        return [(message, None) for message in asked.messages]
    keys = asked.keys[1:]
    found = [(message, memory.sampled(key, message)) for message, key in zip(asked.messages, keys, strict=True)]
    return [(message, None if _left_out(asked, message, known) else known) for message, known in found]


def _left_out(asked: Asked, message: Message, known: _Sampled | None) -> bool:
    """Whether the client wants an answer to be read without its reasoning."""
    wanted = bool(asked.options.get(AS_SENT))
    return wanted and known is not None and bool(known.answer.reasoning) and not message.reasoning


def _relation(memory: Memory, asked: Asked) -> tuple[Seen | None, Fork]:
    """The step that a conversation goes on from, and why not with its ids; `template` if only the template can tell."""
    related = [(length, step) for step in memory.recent if (length := _shared(asked, step))]
    if not related:
        return None, "client" if memory.recent else "root"
    # Of several that go as far, the one whose answer came back unchanged, and of these the newest.
    _, parent = max(enumerate(related), key=lambda one: (one[1][0], _continued(asked, one[1][1]), one[0]))[1]
    same = _continued(asked, parent) and parent.tools_key == asked.tools_key and not parent.throwaway
    same = same and not any(
        _left_out(asked, message, memory.sampled(key, message))
        for message, key in zip(asked.messages, asked.keys[1:], strict=True)
    )
    return parent, "template" if same else "client"


def _shared(asked: Asked, step: Seen) -> int:
    """How many messages the conversation has of the step's, its answer, as it was or rewritten, included; else 0."""
    if _continued(asked, step):
        return asked.place[step.history_key]
    asked_for = asked.place.get(step.request_key) if step.request_key else None
    echoed = asked_for is not None and asked_for < len(asked.messages) and asked.messages[asked_for].role == "assistant"
    return asked_for + 1 if echoed and asked_for is not None else 0


def _continued(asked: Asked, step: Seen) -> bool:
    return bool(step.history_key) and step.history_key in asked.place


def _goes_further(asked: Asked, parent: Seen | None, longest: Seen) -> bool:
    """Whether the conversation has an answer of `parent` that came after everything that `longest` has."""
    return parent is not None and parent is not longest and _shared(asked, parent) > _shared(asked, longest)


def _same_answer(renderer: Renderer, step: Seen, text: str, request: str, tools: Sequence[Tool]) -> int | None:
    """Where in `text` the step's answer ends, if the template wrote the same answer in other characters; else None.

    `request` is what `step` answered as the template writes it: if `text` does not begin with it, the template writes
    the past differently by now. The step's own text may be another than both, since earlier answers are in it as they
    were sampled. The end-of-turn mark counts as part of the answer if the policy sampled it.
    """
    start = len(request)
    if not text.startswith(request):
        return None
    marks = _end_marks(renderer)
    ends = [(position, mark) for mark in marks if (position := text.find(mark, start)) >= 0]
    if not ends:
        return None
    end, mark = min(ends)
    parser = renderer.parser(tools, text[:start])
    written = message_of([*parser.feed(text[start:end]), *parser.finish()])
    same = answer_key(written) == answer_key(step.answer)
    if not same or written.reasoning.strip() != step.answer.reasoning.strip():
        return None
    return end + (len(mark) if step.text.endswith(mark) else 0)


def _without_end(renderer: Renderer, raw: str) -> str:
    """A sampled answer without the end-of-turn mark, which the template writes itself."""
    return next((raw.removesuffix(mark) for mark in _end_marks(renderer) if raw.endswith(mark)), raw)


def _end_marks(renderer: Renderer) -> list[str]:
    return [renderer.decode([token_id], skip_special=False) for token_id in renderer.eos_ids]
