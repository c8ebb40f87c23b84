"""A message's answer, whole or as events: content blocks open, grow and stop one after another."""

from typing import Any, Final, Literal

from pydantic_core import from_json

from stepwell.gateway.dialects.base import Answer, ChatCall, Delta, Started
from stepwell.gateway.dialects.sse import dump, event
from stepwell.gateway.problems import Problem, anthropic_type
from stepwell.rendering.messages import ToolCall
from stepwell.rendering.pieces import CallArguments, CallClosed, CallOpened, Piece, ReasoningPiece, TextPiece

_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_ENDS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_Kind = Literal["", "text", "thinking", "tool_use"]


def whole(call: ChatCall, answer: Answer) -> bytes:
    """The answer of a call that is not streamed."""
    message = answer.message
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        thinking = {"type": "thinking", "thinking": message.reasoning, "signature": _signature(answer.step.id)}
        blocks.append(thinking)
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)} for call in message.tool_calls
    ]
    counts = _usage(len(answer.step.prompt_ids), answer.cached_tokens, len(answer.step.response_ids))
    return dump({**_envelope(answer.step.id, call.model), "content": blocks, **_end(answer), "usage": counts})


def count_json(count: int) -> bytes:
    """The answer of a token count."""
    return dump({"input_tokens": count})


def error_json(problem: Problem) -> bytes:
    """The body of an error answer, which is also the data of an error event."""
    message = problem.message
    if problem.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # the words by which Claude Code knows that it must compact
    return dump({"type": "error", "error": {"type": anthropic_type(problem), "message": message}, "request_id": None})


def _envelope(step_id: str, model: str) -> dict[str, Any]:
    return {"id": f"msg_{step_id}", "type": "message", "role": "assistant", "model": model}


def _signature(step_id: str) -> str:
    # Clients send thinking back only with its signature, and never look inside.
    return f"sig_{step_id}"


def _input(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = from_json(call.arguments or "{}")
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _end(answer: Answer) -> dict[str, Any]:
    if answer.stop and answer.end == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop}
    return {"stop_reason": _ENDS[answer.end], "stop_sequence": None}


def _usage(prompt: int, cached: int, completion: int) -> dict[str, Any]:
    """Token counts; as in the original, the prompt's are split into those that were cached and those that were not."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": completion,
    }


class MessagesWriter:
    """Events of one streamed message."""

    def __init__(self, call: ChatCall) -> None:
        """Begin an answer to `call`."""
        self._call = call
        self._step_id = ""
        self._kind: _Kind = ""
        self._index = -1
        self._grow = b""

    def start(self, started: Started) -> bytes:
        """See `StreamWriter`."""
        self._step_id = started.step_id
        message = {
            **_envelope(started.step_id, self._call.model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(started.prompt_tokens, started.cached_tokens, 0),
        }
        return event(dump({"type": "message_start", "message": message}), b"message_start") + _PING

    def delta(self, delta: Delta) -> bytes:
        """See `StreamWriter`."""
        return b"".join(map(self._piece, delta.pieces))

    def end(self, answer: Answer) -> bytes:
        """See `StreamWriter`."""
        counts = _usage(len(answer.step.prompt_ids), answer.cached_tokens, len(answer.step.response_ids))
        last = dump({"type": "message_delta", "delta": _end(answer), "usage": counts})
        return self._stop() + event(last, b"message_delta") + event(b'{"type":"message_stop"}', b"message_stop")

    def ping(self) -> bytes:
        """See `StreamWriter`."""
        return _PING

    def error(self, problem: Problem) -> bytes:
        """See `StreamWriter`."""
        return event(error_json(problem), b"error")

    def _piece(self, piece: Piece) -> bytes:
        match piece:
            case TextPiece(text):
                opened = b"" if self._kind == "text" else self._open("text", {"type": "text", "text": ""})
                return b"%b%b%b}}\n\n" % (opened, self._grow, dump(text))
            case ReasoningPiece(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                opened = b"" if self._kind == "thinking" else self._open("thinking", block)
                return b"%b%b%b}}\n\n" % (opened, self._grow, dump(text))
            case CallArguments(text):
                return b"%b%b}}\n\n" % (self._grow, dump(text)) if self._kind == "tool_use" else b""
            case CallOpened(call_id, name):
                return self._open("tool_use", {"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallClosed():
                return self._stop()

    def _open(self, kind: _Kind, block: dict[str, Any]) -> bytes:
        stopped = self._stop()
        self._kind = kind
        self._index += 1
        field = {"text": b'text_delta","text', "thinking": b'thinking_delta","thinking'}.get(
            kind, b'input_json_delta","partial_json'
        )
        self._grow = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b":'
            % (self._index, field)
        )
        shape = {"type": "content_block_start", "index": self._index, "content_block": block}
        return stopped + event(dump(shape), b"content_block_start")

    def _stop(self) -> bytes:
        if not self._kind:
            return b""
        signed = b""
        if self._kind == "thinking":
            delta = {"type": "signature_delta", "signature": _signature(self._step_id)}
            shape = {"type": "content_block_delta", "index": self._index, "delta": delta}
            signed = event(dump(shape), b"content_block_delta")
        self._kind = ""
        stop = event(b'{"type":"content_block_stop","index":%d}' % self._index, b"content_block_stop")
        return signed + stop
