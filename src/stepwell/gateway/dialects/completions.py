"""OpenAI's older text completions: text or token ids in, continued as they are."""

import time
from collections.abc import Sequence
from typing import Any, Final

from stepwell.gateway.dialects.base import Answer, ChatCall, Delta, Started, StreamWriter, Token
from stepwell.gateway.dialects.fields import LARGEST, Fields, invalid
from stepwell.gateway.dialects.openai import HARMLESS, completion_head, finite, open_json, usage
from stepwell.gateway.dialects.requests import limit_of, refuse, sampled, schema_of, seed_of, stops
from stepwell.gateway.dialects.sse import COMMENT, DONE, dump, event
from stepwell.gateway.problems import Problem, problem_json
from stepwell.rendering.pieces import TextPiece

_HARMLESS: Final = {**HARMLESS, "suffix": ("",), "echo": (False,), "best_of": (1,)}
_DEFAULT_MAX_TOKENS: Final = 16  # as in the original
_MOST_CHOICES: Final = 128
_MOST_LOGPROBS: Final = 20


class CompletionsDialect:
    """`POST /completions`."""

    name: Final = "completions"
    path: Final = "/completions"

    def parse(self, body: Any, raw: bytes) -> ChatCall:
        """See `Dialect`."""
        fields = Fields(body)
        refuse(fields, _HARMLESS)
        options = fields.child("stream_options")
        return ChatCall(
            dialect=self.name,
            model=fields.name("model"),
            prompt=_prompt(fields),
            **sampled(fields),
            seed=seed_of(fields),
            max_tokens=limit_of(fields, "max_tokens") or _DEFAULT_MAX_TOKENS,
            stop=stops(fields, "stop"),
            json_schema=schema_of(fields.child("response_format")),
            choices=fields.integer("n", 1, _MOST_CHOICES) or 1,
            stream=fields.flag("stream"),
            include_usage=options is not None and options.flag("include_usage"),
            logprobs=fields.has("logprobs"),
            top_logprobs=fields.integer("logprobs", 0, _MOST_LOGPROBS) or 0,
            body=raw,
        )

    def answer(self, call: ChatCall, answers: tuple[Answer, ...]) -> bytes:
        """See `Dialect`."""
        step = answers[0].step
        shape = completion_head("cmpl", "text_completion", step.id, call.model, int(step.created_at))
        shape["choices"] = [
            {
                "index": answer.choice,
                "text": answer.message.content,
                "logprobs": _logprobs(answer.tokens, 0) if call.logprobs else None,
                "finish_reason": answer.end,
            }
            for answer in answers
        ]
        shape["usage"] = usage(answers)
        return dump(shape)

    def writer(self, call: ChatCall) -> StreamWriter:
        """See `Dialect`."""
        return CompletionsWriter(call)

    def problem(self, problem: Problem) -> bytes:
        """See `Dialect`."""
        return problem_json(problem)


def _prompt(fields: Fields) -> str | tuple[int, ...]:
    value = fields.get("prompt")
    place = fields.place("prompt")
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], int):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value:
        raise invalid(place, "must be a text or a list of token ids, not empty")
    if isinstance(value[0], str | list):
        raise invalid(
            place, "several prompts in one call are not supported: make one call each, so that each is a step"
        )
    if not all(type(token_id) is int and 0 <= token_id <= LARGEST for token_id in value):
        raise invalid(place, f"token ids must be whole numbers in 0..{LARGEST}")
    return tuple(value)


def _logprobs(tokens: Sequence[Token], offset: int) -> dict[str, Any]:
    """The legacy shape; `offset` is where the first token begins in the choice's text, in characters."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [finite(token.logprob) for token in tokens],
        "top_logprobs": [{other.text: finite(other.logprob) for other in token.top} for token in tokens],
        "text_offset": offsets,
    }


class CompletionsWriter:
    """Chunks of one streamed completion, all its choices."""

    def __init__(self, call: ChatCall) -> None:
        """Begin an answer to `call`."""
        self._call = call
        self._close = b'}],"usage":null}\n\n' if call.include_usage else b"}]}\n\n"
        self._head = b""
        self._offsets: dict[int, int] = {}
        self._answers: list[Answer] = []

    def start(self, started: Started) -> bytes:
        """See `StreamWriter`."""
        if not self._head:
            shape = completion_head("cmpl", "text_completion", started.step_ids[0], self._call.model, int(time.time()))
            self._head = open_json(shape)
        self._offsets[started.choice] = 0
        return b""

    def delta(self, delta: Delta) -> bytes:
        """See `StreamWriter`."""
        text = "".join([piece.text for piece in delta.pieces if isinstance(piece, TextPiece)])
        if delta.tokens:
            offset = self._offsets[delta.choice]
            self._offsets[delta.choice] = offset + sum(len(token.text) for token in delta.tokens)
            return self._chunk(delta.choice, text, dump(_logprobs(delta.tokens, offset)))
        return self._chunk(delta.choice, text) if text else b""

    def end(self, answer: Answer) -> bytes:
        """See `StreamWriter`."""
        chunk = self._chunk(answer.choice, "", finish=dump(answer.end))
        self._answers.append(answer)
        if len(self._answers) < self._call.choices:
            return chunk
        if not self._call.include_usage:
            return chunk + DONE
        counts = b'%b,"choices":[],"usage":%b}' % (self._head, dump(usage(self._answers)))
        return chunk + event(counts) + DONE

    def ping(self) -> bytes:
        """See `StreamWriter`."""
        return COMMENT

    def error(self, problem: Problem) -> bytes:
        """See `StreamWriter`."""
        return event(problem_json(problem))

    def _chunk(self, choice: int, text: str, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        return b'data: %b,"choices":[{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b%b' % (
            self._head,
            choice,
            dump(text),
            logprobs,
            finish,
            self._close,
        )
