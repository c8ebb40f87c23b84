"""An answer while it is sampled: tokens in, and out come the pieces that are certain to be in the answer."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepwell.engines.base import Chunk, Generation
from stepwell.errors import EngineError
from stepwell.gateway.dialects.base import Answer, ChatCall, Delta, Token, end_of
from stepwell.rendering.bridge import Bridged
from stepwell.rendering.messages import Message
from stepwell.rendering.pieces import CallClosed, Piece, ReasoningPiece, ReplyParser, TextPiece, message_of
from stepwell.rendering.renderer import Renderer
from stepwell.rendering.wire import answer_from_json, answer_to_json
from stepwell.types import FinishReason, Floats, Ids, Side, Step, TokenSource


class StopFilter:
    """Lets text through up to the first stop text; what may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Look for `stops`; none lets everything through."""
        self._stops = stops
        self._held = ""
        self.found = ""
        """The stop text that was found; empty so far."""

    def feed(self, text: str) -> str:
        """What is certainly before any stop text."""
        if not self._stops:
            return text
        if self.found:
            return ""
        text = self._held + text
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return text[:place]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back: no stop text comes any more."""
        held, self._held = self._held, ""
        return held


class PlainParser:
    """Everything is text: for prompts that are no conversation."""

    def feed(self, text: str) -> list[Piece]:
        """See `ReplyParser`."""
        return [TextPiece(text)] if text else []

    def finish(self) -> list[Piece]:
        """See `ReplyParser`."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the engine is asked to continue, and where it comes from."""

    bridged: Bridged
    prefill: str = ""
    """The end of its text that already belongs to the answer."""
    prefill_ids: int = 0
    """How many ids that is."""
    json_schema: str = ""
    """What the engine must keep the response to; empty: nothing."""
    side: Side = ""
    """What the call is for, if it is beside the agent's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Who answers."""

    model: str
    token_source: TokenSource


class Draft:
    """One choice of one answer in the making: the tokens sampled so far, and the step and message that they become."""

    def __init__(
        self,
        renderer: Renderer,
        call: ChatCall,
        generation: Generation,
        prompt: Prompt,
        choice: int,
        source: Source,
        step_id: str,
    ) -> None:
        """Begin the answer to `call`, for which the engine is given `generation`; its step will be called `step_id`."""
        self._renderer = renderer
        self._call = call
        self._source = source
        self._decoder = renderer.decoder()
        self._stop = StopFilter(call.stop)
        self._parser = _parser(renderer, call, prompt)
        self._pieces: list[Piece] = []
        self._arrived = time.perf_counter()
        self._latency = 0.0
        self._logprobs: list[float] = []
        self._tops: list[tuple[tuple[int, float], ...]] = []
        self._versions: list[int] = []
        self._shown = 0  # tokens that a delta has carried
        self._finish: FinishReason | None = None
        self._called = False  # the one call that is allowed is complete
        self._reasoning_tokens = 0
        self.prompt = prompt
        self.choice = choice
        self.step_id: Final = step_id
        self.generation = generation
        self.ids: list[int] = []
        self.message = Message(role="assistant")
        """The answer, once it is finished."""

    @property
    def stopped(self) -> bool:
        """Whether the rest is not wanted: a stop text was sampled, or the one call that is allowed."""
        return bool(self._stop.found) or self._called

    @property
    def finish_reason(self) -> FinishReason:
        """How sampling ended. Raises EngineError if it did not end properly."""
        if self.stopped:
            return "stop"
        if self._finish is None or self._finish == "abort":
            raise EngineError("the engine ended the answer before it was complete; try again")
        return self._finish

    def take(self, chunk: Chunk) -> Delta | None:
        """Add what the engine sampled; gives what the client may see of it."""
        ids = chunk.token_ids
        self.ids.extend(ids)
        self._logprobs.extend(chunk.logprobs)
        if chunk.top:
            self._tops.extend(chunk.top)
        if not self._versions or self._versions[-1] != chunk.policy_version:
            self._versions.append(chunk.policy_version)
        self._finish = chunk.finish_reason
        self._latency = time.perf_counter() - self._arrived
        text = self._decoder.feed(ids)
        if text and self._call.stop:
            text = self._stop.feed(text)
        return self._certain(self._parser.feed(text), len(ids)) if text else None

    def finish(self) -> Delta | None:
        """Sampling is over: the rest of what the client may see."""
        text = self._stop.feed(self._decoder.finish()) + self._stop.finish()
        rest = self._certain([*(self._parser.feed(text) if text else ()), *self._parser.finish()], 0)
        self.message = message_of(self._pieces)
        return rest

    def _certain(self, pieces: list[Piece], tokens: int) -> Delta | None:
        """Add pieces, the last `tokens` of the answer."""
        if not self._call.tool_choice.parallel:
            pieces = self._until_called(pieces)
        if not pieces:
            return None
        self._pieces += pieces
        if type(pieces[-1]) is ReasoningPiece:
            self._reasoning_tokens += tokens
        shown = self._new_tokens() if self._call.logprobs else ()
        return Delta(choice=self.choice, pieces=tuple(pieces), tokens=shown)

    def _until_called(self, pieces: list[Piece]) -> list[Piece]:
        """Without what follows the only call that the client allows."""
        kept: list[Piece] = []
        for piece in pieces:
            if not self._called:
                kept.append(piece)
                self._called = isinstance(piece, CallClosed)
        return kept

    def step(
        self, index: int, trajectory_id: str, finish_reason: FinishReason, redact: Callable[[bytes], bytes]
    ) -> Step:
        """The record of the call; its message is that of `finish`, less what `redact` removes from JSON."""
        bridged = self.prompt.bridged
        return Step(
            id=self.step_id,
            trajectory_id=trajectory_id,
            index=index,
            prompt_ids=self.generation.prompt_ids,
            response_ids=self.response_ids,
            logprobs=_floats(self._logprobs),
            policy_version_min=min(self._versions),
            policy_version_max=max(self._versions),
            finish_reason=finish_reason,
            token_source=self._source.token_source,
            sampling=self.generation.sampling,
            model=self._source.model,
            parent_id=bridged.parent_id,
            fork=bridged.fork,
            side=self.prompt.side,
            prefill=self.prompt.prefill_ids,
            dialect=self._call.dialect,
            request=self._call.body.decode(),
            response=redact(answer_to_json(self.message).encode()).decode(),
            latency=self._latency,
        )

    @property
    def response_ids(self) -> Ids:
        """int32 [R]: what was sampled so far."""
        return np.array(self.ids, np.int32)

    def answer(self, step: Step) -> Answer:
        """The complete answer, once `step` is stored."""
        message = self.message
        return Answer(
            choice=self.choice,
            step=step,
            message=message,
            end=end_of(message, step.finish_reason),
            stop=self._stop.found,
            cached_tokens=self.prompt.bridged.reused,
            reasoning_tokens=self._reasoning_tokens,
            tokens=self._tokens(0) if self._call.logprobs else (),
        )

    def _new_tokens(self) -> tuple[Token, ...]:
        start, self._shown = self._shown, len(self.ids)
        return self._tokens(start)

    def _tokens(self, start: int) -> tuple[Token, ...]:
        tops = self._tops[start:] or [()] * (len(self.ids) - start)
        return tuple(
            self._token(token_id, logprob, top)
            for token_id, logprob, top in zip(self.ids[start:], self._logprobs[start:], tops, strict=True)
            if token_id not in self._renderer.eos_ids
        )

    def _token(self, token_id: int, logprob: float, top: Iterable[tuple[int, float]] = ()) -> Token:
        data = self._renderer.token_bytes(token_id)
        others = tuple(self._token(other, its) for other, its in top)
        return Token(text=data.decode(errors="replace"), data=data, logprob=logprob, top=others)


def replayed(renderer: Renderer, call: ChatCall, step: Step, choice: int) -> Answer:
    """The answer of a stored step to a call that asks for it once more; alternatives to its tokens are not stored."""
    begun = step.prompt_ids[len(step.prompt_ids) - step.prefill :]
    bridged = Bridged(
        prompt_ids=step.prompt_ids,
        text=renderer.decode(step.prompt_ids, skip_special=False),
        reused=0,
        parent_id=step.parent_id,
        fork=step.fork,
    )
    prompt = Prompt(bridged=bridged, prefill=renderer.decode(begun, skip_special=False), prefill_ids=step.prefill)
    generation = Generation(prompt_ids=step.prompt_ids, sampling=step.sampling)
    source = Source(model=step.model, token_source=step.token_source)
    draft = Draft(renderer, call, generation, prompt, choice, source, step.id)
    ids, logprobs = tuple(step.response_ids.tolist()), tuple(step.logprobs.tolist())
    draft.take(Chunk(token_ids=ids, logprobs=logprobs, policy_version=step.policy_version_max))
    draft.finish()
    answer = draft.answer(step)
    message = answer_from_json(step.response) or answer.message  # with the call ids that the client may know
    return replace(answer, message=message)


def _parser(renderer: Renderer, call: ChatCall, prompt: Prompt) -> ReplyParser:
    if call.prompt is not None:
        return PlainParser()
    text = prompt.bridged.text
    parser = renderer.parser(call.tools, text[: len(text) - len(prompt.prefill)])
    parser.feed(prompt.prefill)  # it opens the call that follows: nothing to show yet
    return parser


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, np.float32)


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning, not the whole, of `mark`."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
