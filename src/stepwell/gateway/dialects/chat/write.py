"""A chat completion's answer, whole or as chunks."""

import time
from typing import Any

from stepwell.gateway.dialects.base import Answer, AnswerEnd, ChatCall, Delta, Started
from stepwell.gateway.dialects.chat.parse import LEGACY
from stepwell.gateway.dialects.openai import completion_head, open_json, token_shapes, usage
from stepwell.gateway.dialects.sse import COMMENT, DONE, dump, event
from stepwell.gateway.problems import Problem, problem_json
from stepwell.rendering.messages import Message
from stepwell.rendering.pieces import CallArguments, CallClosed, CallOpened, Piece, ReasoningPiece, TextPiece


def whole(call: ChatCall, answers: tuple[Answer, ...]) -> bytes:
    """The answer of a call that is not streamed."""
    step = answers[0].step
    shape = completion_head("chatcmpl", "chat.completion", step.id, call.model, int(step.created_at))
    shape["choices"] = [_choice(call, answer) for answer in answers]
    shape["usage"] = usage(answers)
    return dump(shape)


def _choice(call: ChatCall, answer: Answer) -> dict[str, Any]:
    return {
        "index": answer.choice,
        "message": _message(answer.message, legacy=call.kept == LEGACY),
        "logprobs": {"content": token_shapes(answer.tokens), "refusal": None} if call.logprobs else None,
        "finish_reason": _finish(call, answer.end),
    }


def _message(message: Message, *, legacy: bool) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    shape: dict[str, Any] = {
        "role": "assistant",
        "content": message.content or (None if calls else ""),
        "refusal": None,
        "annotations": [],
    }
    if message.reasoning:
        shape["reasoning_content"] = message.reasoning
    if calls and legacy:
        shape["function_call"] = calls[0]
    elif calls:
        shape["tool_calls"] = [
            {"id": call.id, "type": "function", "function": function}
            for call, function in zip(message.tool_calls, calls, strict=True)
        ]
    return shape


def _finish(call: ChatCall, end: AnswerEnd) -> str:
    return "function_call" if end == "tool_calls" and call.kept == LEGACY else end


class ChoiceStream:
    """One choice's chunks: what is the same in all of them is made once."""

    def __init__(self, head: bytes, call: ChatCall, index: int) -> None:
        """`head`: the chunk up to its choices."""
        self._open = b'data: %b,"choices":[{"index":%d,"delta":' % (head, index)
        self._close = b'}],"usage":null}\n\n' if call.include_usage else b"}]}\n\n"
        self._before_text, self._after_text = self.chunk(b'{"content":\0}').split(b"\0")
        self._legacy = call.kept == LEGACY
        self._calls = 0

    def chunk(self, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        """One chunk around the JSON of its parts."""
        return b'%b%b,"logprobs":%b,"finish_reason":%b%b' % (self._open, delta, logprobs, finish, self._close)

    def written(self, piece: Piece) -> bytes:
        """One chunk of a piece; empty for one that shows in nothing."""
        if type(piece) is TextPiece:  # what nearly all of them are
            return self._before_text + dump(piece.text) + self._after_text
        shape = self.piece(piece)
        return self.chunk(shape) if shape else b""

    def piece(self, piece: Piece) -> bytes:
        """The JSON of a piece as a delta; empty for one that shows in nothing."""
        match piece:
            case TextPiece(text):
                return b'{"content":%b}' % dump(text)
            case ReasoningPiece(text):
                return b'{"reasoning_content":%b}' % dump(text)
            case CallOpened():
                self._calls += 1
                return self._opened(piece)
            case CallArguments(text) if self._legacy:
                return b'{"function_call":{"arguments":%b}}' % dump(text)
            case CallArguments(text):
                return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (self._calls - 1, dump(text))
            case CallClosed():
                return b""

    def _opened(self, piece: CallOpened) -> bytes:
        if self._legacy:
            return b'{"function_call":{"name":%b,"arguments":""}}' % dump(piece.name)
        return b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]}' % (
            self._calls - 1,
            dump(piece.id),
            dump(piece.name),
        )


class ChatWriter:
    """Chunks of one streamed completion, all its choices."""

    def __init__(self, call: ChatCall) -> None:
        """Begin an answer to `call`."""
        self._call = call
        self._head = b""
        self._streams: dict[int, ChoiceStream] = {}
        self._answers: list[Answer] = []

    def start(self, started: Started) -> bytes:
        """See `StreamWriter`."""
        if not self._head:
            shape = completion_head(
                "chatcmpl", "chat.completion.chunk", started.step_ids[0], self._call.model, int(time.time())
            )
            self._head = open_json(shape)
        stream = self._streams[started.choice] = ChoiceStream(self._head, self._call, started.choice)
        return stream.chunk(b'{"role":"assistant","content":""}')

    def delta(self, delta: Delta) -> bytes:
        """See `StreamWriter`."""
        stream = self._streams[delta.choice]
        if not delta.tokens:
            return b"".join(map(stream.written, delta.pieces))
        shown = [shape for shape in map(stream.piece, delta.pieces) if shape]
        logprobs = dump({"content": token_shapes(delta.tokens), "refusal": None})
        first, *rest = shown or [b'{"content":""}']
        return b"".join([stream.chunk(first, logprobs), *map(stream.chunk, rest)])

    def end(self, answer: Answer) -> bytes:
        """See `StreamWriter`."""
        finish = dump(_finish(self._call, answer.end))
        chunk = self._streams[answer.choice].chunk(b"{}", finish=finish)
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
