"""What a dialect is: one wire format of a chat API, translated to and from the gateway's own records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from stepwell.gateway.problems import Problem
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.pieces import Piece
from stepwell.types import FinishReason, Step

AnswerEnd = Literal["stop", "length", "tool_calls"]


def end_of(message: Message, finish_reason: FinishReason) -> AnswerEnd:
    """What clients are told about how an answer ended."""
    if finish_reason == "length":
        return "length"
    return "tool_calls" if message.tool_calls else "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Which tools the policy may or must call. If it may call none, `ChatCall.tools` is empty."""

    forced: bool = False
    """The answer must be a call."""
    name: str = ""
    """Of this tool, if not empty."""
    parallel: bool = True
    """False: the answer ends with its first call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A client's request, understood and checked."""

    dialect: str
    """Name of its wire format."""
    model: str
    messages: tuple[Message, ...] = ()
    """Empty only if `prompt` is given."""
    prompt: str | tuple[int, ...] | None = None
    """Instead of messages: text or token ids that are continued as they are, without a chat template."""
    previous_id: str = ""
    """Step whose conversation, answer included, comes before `messages`. A system message at the head of `messages`
    takes the place of the one at the head of that conversation."""
    recalled: tuple[tuple[int, str], ...] = ()
    """(position in `messages`, step id): the assistant message there stands for that step's answer, which the client
    refers to instead of sending it; what the message holds is the part that the client did send."""
    tools: tuple[Tool, ...] = ()
    """Those that the policy may call; empty if the client forbids calls."""
    tool_choice: ToolChoice = ToolChoice()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    """None: as many as the gateway's default allows."""
    stop: tuple[str, ...] = ()
    """Texts before which the answer is cut."""
    json_schema: str = ""
    """JSON text of the schema that the answer's text must meet; empty: none."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, such as `enable_thinking`."""
    choices: int = 1
    """How many answers are sampled, each its own step."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the token counts."""
    logprobs: bool = False
    top_logprobs: int = 0
    titled: bool = False
    """Whether the request itself tells that it only asks for a title or topic, such as a JSON schema with a `title`."""
    body: bytes = b""
    """JSON of the request as sent: becomes `Step.request`."""
    kept: object = None
    """What its dialect needs to answer in kind; nobody else looks inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A sampled token as clients may ask to see it."""

    text: str
    data: bytes
    """Its own bytes: `text` has U+FFFD where they are not whole characters."""
    logprob: float
    top: tuple["Token", ...] = ()
    """The likeliest tokens at its place, best first, if asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine has sampled a choice's first token."""

    choice: int = 0
    step_ids: tuple[str, ...]
    """Ids of the steps of all choices, in order."""
    trajectory_id: str
    policy_version: int
    prompt_tokens: int
    cached_tokens: int
    """Of them, those that an earlier step of the trajectory already had."""

    @property
    def step_id(self) -> str:
        """Id of this choice's step."""
        return self.step_ids[self.choice]


class Delta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """More of a choice's answer. A struct, as `Chunk` is."""

    choice: int = 0
    pieces: tuple[Piece, ...] = ()
    tokens: tuple[Token, ...] = ()
    """Sampled since the delta before; empty unless the call asked for logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A choice's whole answer; its step is stored."""

    choice: int = 0
    step: Step
    message: Message
    end: AnswerEnd
    stop: str = ""
    """The stop text that ended it, if one did."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    tokens: tuple[Token, ...] = ()
    """All of them; empty unless the call asked for logprobs."""


Event = Started | Delta | Answer
"""What an exchange yields: for each choice one Started, any number of Delta, one Answer. The pieces of its deltas add
up to the answer's message."""


class StreamWriter(Protocol):
    """Writes one streamed answer; every method returns bytes to send, possibly none."""

    def start(self, started: Started) -> bytes:
        """What precedes a choice's content."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """More of a choice. On the hot path: called once per token."""
        ...

    def end(self, answer: Answer) -> bytes:
        """A choice is complete: the end's reason and what belongs to it. The last choice's also ends the stream: token
        counts and the end mark."""
        ...

    def ping(self) -> bytes:
        """Something that every client ignores, to show that the connection lives."""
        ...

    def error(self, problem: Problem) -> bytes:
        """The answer cannot be completed; nothing follows."""
        ...


class Dialect(Protocol):
    """One wire format. Stateless: one instance serves all calls."""

    @property
    def name(self) -> str:
        """What `Step.dialect` says, such as `chat`."""
        ...

    @property
    def path(self) -> str:
        """Route below the base URL, such as `/chat/completions`."""
        ...

    def parse(self, body: Any, raw: bytes) -> ChatCall:
        """Understand a request's JSON, `raw` before it was parsed.

        Raises:
            InvalidRequest: a field is wrong, or asks for something that cannot be honoured; the message names it.
        """
        ...

    def answer(self, call: ChatCall, answers: tuple[Answer, ...]) -> bytes:
        """The body of an answer that is not streamed, one `Answer` per choice, in order."""
        ...

    def writer(self, call: ChatCall) -> StreamWriter:
        """A writer for one streamed answer."""
        ...

    def problem(self, problem: Problem) -> bytes:
        """The body of an error answer."""
        ...
