"""OpenAI's chat completions, streamed and not, with tools."""

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import to_json

from stepwell.errors import InvalidRequest
from stepwell.gateway.dialects.base import Answer, ChatCall, Delta, Started, StreamWriter, Token
from stepwell.gateway.problems import Problem, explain, problem_json
from stepwell.rendering.messages import Message, Role, Tool, ToolCall, answer_to_json

_V = TypeVar("_V")


def _join_text(content: object) -> object:
    """Null as no text, and a list of text blocks as their text; anything else is left for the field's own check."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    texts = []
    for block in content:
        if not (isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)):
            raise ValueError("only text blocks are supported, because the model reads text alone")
        texts.append(block["text"])
    return "".join(texts)


Text = Annotated[str, BeforeValidator(_join_text)]
"""A message's content: a string, null, or a list of text blocks."""


class FunctionCall(BaseModel):
    """The function that an echoed tool call names."""

    name: str = Field(min_length=1, max_length=256)
    arguments: str = ""


class CallEcho(BaseModel):
    """A tool call in an assistant message that the client sends back."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(BaseModel):
    """One message as it comes in."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text = ""
    tool_calls: list[CallEcho] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _calls_only_from_the_assistant(self) -> "ChatMessage":
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant message has tool_calls")
        return self

    def record(self) -> Message:
        """As the renderer takes it."""
        calls = [
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in self.tool_calls or ()
        ]
        role: Role = "system" if self.role == "developer" else self.role
        return Message(role=role, content=self.content, tool_calls=tuple(calls), tool_call_id=self.tool_call_id)


class FunctionSpec(BaseModel):
    """A function that the client offers."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolSpec(BaseModel):
    """A tool that the client offers."""

    type: Literal["function"] = "function"
    function: FunctionSpec

    def record(self) -> Tool:
        """As the renderer takes it."""
        parameters = self.function.parameters or {"type": "object", "properties": {}}
        return Tool(name=self.function.name, description=self.function.description or "", parameters=parameters)


def _functions_only(tools: object) -> object:
    """Leave out built-in tools such as web search, which clients list for servers that have them."""
    if not isinstance(tools, list):
        return tools
    return [tool for tool in tools if not (isinstance(tool, dict) and tool.get("type", "function") != "function")]


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ResponseFormat(BaseModel):
    """Shape that the answer's text must have."""

    type: str


def _one_or_more(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


StopText = Annotated[str, Field(min_length=1, max_length=1024)]


class ChatRequest(BaseModel):
    """The body of a call; fields that are not listed are ignored, as clients send many."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    tools: Annotated[list[ToolSpec] | None, BeforeValidator(_functions_only)] = None
    tool_choice: Any = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop: Annotated[list[StopText] | None, Field(max_length=4), BeforeValidator(_one_or_more)] = None
    seed: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None

    def refuse_unsupported(self) -> None:
        """Raise InvalidRequest for what would have to be ignored although the client relies on it."""
        if self.n not in (None, 1):
            raise InvalidRequest(f"n must be 1, got {self.n}: make one call per answer, so that each is its own step")
        if self.top_logprobs:
            raise InvalidRequest("top_logprobs is not supported: only the sampled token's log-probability is known")
        if self.response_format is not None and self.response_format.type != "text":
            raise InvalidRequest("response_format must be text: the policy is sampled without constraints")
        if self.tool_choice not in (None, "auto", "none"):
            raise InvalidRequest(
                "tool_choice must be auto or none: a forced call would need constrained sampling, which would change "
                "the policy"
            )


class ChatDialect:
    """`POST /chat/completions`."""

    path: Final = "/chat/completions"

    def parse(self, body: Any) -> ChatCall:
        """See `Dialect`."""
        try:
            request = ChatRequest.model_validate(body)
        except ValidationError as error:
            raise InvalidRequest(explain(error)) from error
        request.refuse_unsupported()
        tools = () if request.tool_choice == "none" else tuple(tool.record() for tool in request.tools or ())
        return ChatCall(
            model=request.model,
            messages=tuple(message.record() for message in request.messages),
            tools=tools,
            temperature=_or(request.temperature, 1.0),
            top_p=_or(request.top_p, 1.0),
            seed=None if request.seed is None else request.seed % 2**63,
            max_tokens=_or(request.max_completion_tokens, request.max_tokens),
            stop=tuple(request.stop or ()),
            stream=bool(request.stream),
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
            logprobs=bool(request.logprobs),
            record=_record(body),
        )

    def answer(self, call: ChatCall, answer: Answer) -> bytes:
        """See `Dialect`."""
        choice: dict[str, object] = {
            "index": 0,
            "message": json.loads(answer_to_json(answer.message)),
            "finish_reason": answer.end,
            "logprobs": _logprobs(call, answer.tokens),
        }
        shape = _envelope("chat.completion", answer.step.id, call.model, int(answer.step.created_at))
        return _dump({**shape, "choices": [choice], "usage": _usage(answer)})

    def writer(self, call: ChatCall, started: Started) -> StreamWriter:
        """See `Dialect`."""
        return ChatWriter(call, started)


class ChatWriter:
    """Chunks of one streamed completion."""

    def __init__(self, call: ChatCall, started: Started) -> None:
        """Begin an answer to `call`."""
        self._call = call
        self._envelope = _envelope("chat.completion.chunk", started.step_id, call.model, int(time.time()))

    def start(self) -> bytes:
        """See `StreamWriter`."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> bytes:
        """See `StreamWriter`."""
        return self._chunk({"content": delta.text}, delta.tokens)

    def end(self, answer: Answer) -> bytes:
        """See `StreamWriter`."""
        pieces = [self.delta(answer.rest)] if answer.rest.text or answer.rest.tokens else []
        for index, call in enumerate(answer.message.tool_calls):
            function = {"name": call.name, "arguments": call.arguments}
            shape = {"index": index, "id": call.id, "type": "function", "function": function}
            pieces.append(self._chunk({"tool_calls": [shape]}))
        pieces.append(self._chunk({}, end=answer.end))
        if self._call.include_usage:
            pieces.append(_event({**self._envelope, "choices": [], "usage": _usage(answer)}))
        return b"".join([*pieces, b"data: [DONE]\n\n"])

    def error(self, problem: Problem) -> bytes:
        """See `StreamWriter`."""
        return b"data: " + problem_json(problem) + b"\n\n"

    def _chunk(self, delta: dict[str, object], tokens: Sequence[Token] = (), end: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": end, "logprobs": None}
        if tokens:
            choice["logprobs"] = _logprobs(self._call, tokens)
        return _event({**self._envelope, "choices": [choice]})


def _or(value: _V | None, default: _V) -> _V:
    return default if value is None else value


def _record(body: dict[str, Any]) -> str:
    return to_json({"messages": body["messages"], "tools": body.get("tools") or []}).decode()


def _envelope(kind: str, step_id: str, model: str, created: int) -> dict[str, object]:
    return {"id": f"chatcmpl-{step_id}", "object": kind, "created": created, "model": model}


def _usage(answer: Answer) -> dict[str, int]:
    prompt, completion = len(answer.step.prompt_ids), len(answer.step.response_ids)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _logprobs(call: ChatCall, tokens: Sequence[Token]) -> dict[str, object] | None:
    if not call.logprobs:
        return None
    content = [
        {"token": t.text, "logprob": t.logprob, "bytes": list(t.text.encode()), "top_logprobs": []} for t in tokens
    ]
    return {"content": content, "refusal": None}


def _dump(shape: dict[str, object]) -> bytes:
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":")).encode()


def _event(shape: dict[str, object]) -> bytes:
    return b"data: " + _dump(shape) + b"\n\n"
