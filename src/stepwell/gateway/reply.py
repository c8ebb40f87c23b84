"""An answer while it is sampled: tokens in, and out comes the text that is certain to be in the answer."""

import time
from collections.abc import Iterator, Sequence
from functools import cached_property

from stepwell.engines.base import Chunk, Generation
from stepwell.errors import EngineError
from stepwell.gateway.dialects.base import Answer, AnswerEnd, ChatCall, Delta, Event, Started, Token
from stepwell.rendering.messages import Message, answer_to_json
from stepwell.rendering.renderer import Renderer
from stepwell.rendering.toolcalls import overlap
from stepwell.types import FinishReason, Step, new_id


class ReplyText:
    """The text so far, cut at the first stop string, and how much of it may be sent.

    A possible tool call and a possible stop string are held back until it is clear what they are.
    """

    def __init__(self, renderer: Renderer, call: ChatCall) -> None:
        """Begin with no text."""
        self._renderer = renderer
        self._tools = call.tools
        self._stop = call.stop
        self._longest_stop = max(map(len, call.stop), default=0)
        self._decoder = renderer.decoder()
        self.text = ""
        self.sent = 0
        self.stopped = False

    def feed(self, ids: Sequence[int]) -> str:
        """The text that may be sent now that `ids` are sampled; often empty."""
        self._append(self._decoder.feed(ids))
        held = 0 if self.stopped else max((overlap(self.text, stop) for stop in self._stop), default=0)
        sure = min(self._renderer.plain_length(self.text, self._tools), len(self.text) - held)
        start, self.sent = self.sent, max(self.sent, sure)
        return self.text[start : self.sent]

    def finish(self) -> str:
        """The whole text; nothing is fed after this."""
        self._append(self._decoder.finish())
        return self.text

    def _append(self, piece: str) -> None:
        if not piece or self.stopped:
            return
        start = max(0, len(self.text) - self._longest_stop)
        self.text += piece
        found = [position for stop in self._stop if (position := self.text.find(stop, start)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True


class Draft:
    """One answer in the making: the tokens sampled so far and the step and message that they become."""

    def __init__(
        self, renderer: Renderer, call: ChatCall, generation: Generation, *, trajectory_id: str, model: str
    ) -> None:
        """Begin the answer to `call`, for which the engine is given `generation`."""
        self._renderer = renderer
        self._call = call
        self._reply = ReplyText(renderer, call)
        self._model = model
        self._trajectory_id = trajectory_id
        self._arrived = time.perf_counter()
        self._latency = 0.0
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._shown = 0  # tokens that a delta has carried
        self._finish: FinishReason | None = None
        self.step_id = new_id("step")
        self.generation = generation
        self.ids: list[int] = []

    @property
    def stopped(self) -> bool:
        """Whether a stop string was sampled: the rest is not wanted."""
        return self._reply.stopped

    @property
    def finish_reason(self) -> FinishReason:
        """How sampling ended. Raises EngineError if it did not end properly."""
        if self.stopped:
            return "stop"
        if self._finish is None or self._finish == "abort":
            raise EngineError("the engine ended the answer before it was complete; try again")
        return self._finish

    def take(self, chunk: Chunk) -> Iterator[Event]:
        """Add what the engine sampled; yields what the client may see of it."""
        if not self._versions:
            yield Started(step_id=self.step_id, trajectory_id=self._trajectory_id, policy_version=chunk.policy_version)
        self.ids.extend(chunk.token_ids)
        self._logprobs.extend(chunk.logprobs)
        if not self._versions or self._versions[-1] != chunk.policy_version:
            self._versions.append(chunk.policy_version)
        self._finish = chunk.finish_reason
        self._latency = time.perf_counter() - self._arrived
        text = self._reply.feed(chunk.token_ids)
        if text:
            yield Delta(text=text, tokens=self._new_tokens())

    @cached_property
    def message(self) -> Message:
        """The assistant message; sampling is over when it is first asked for."""
        parsed = self._renderer.parse_text(self._reply.finish(), self._call.tools)
        return Message(role="assistant", content=parsed.content, tool_calls=parsed.tool_calls)

    def step(self, index: int, finish_reason: FinishReason) -> Step:
        """The record of the call."""
        return Step(
            id=self.step_id,
            trajectory_id=self._trajectory_id,
            index=index,
            prompt_ids=self.generation.prompt_ids,
            response_ids=self.ids,  # type: ignore[arg-type]  # the record makes arrays of lists
            logprobs=self._logprobs,  # type: ignore[arg-type]
            policy_version_min=min(self._versions),
            policy_version_max=max(self._versions),
            finish_reason=finish_reason,
            sampling=self.generation.sampling,
            model=self._model,
            request=self._call.record,
            response=answer_to_json(self.message),
            latency=self._latency,
        )

    def answer(self, step: Step) -> Answer:
        """The complete answer, once `step` is stored."""
        end: AnswerEnd = "length" if step.finish_reason == "length" else "stop"
        return Answer(
            step=step,
            message=self.message,
            end="tool_calls" if self.message.tool_calls else end,
            rest=Delta(text=self.message.content[self._reply.sent :], tokens=self._new_tokens()),
            tokens=self._tokens(0),
        )

    def _new_tokens(self) -> tuple[Token, ...]:
        start, self._shown = self._shown, len(self.ids)
        return self._tokens(start)

    def _tokens(self, start: int) -> tuple[Token, ...]:
        if not self._call.logprobs:
            return ()
        return tuple(
            Token(text=self._renderer.decode([token_id], skip_special=False), logprob=logprob)
            for token_id, logprob in zip(self.ids[start:], self._logprobs[start:], strict=True)
            if token_id not in self._renderer.eos_ids
        )
