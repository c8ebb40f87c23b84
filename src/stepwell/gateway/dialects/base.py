"""What a dialect is: one wire format of a chat API, translated to and from the gateway's own records."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stepwell.gateway.problems import Problem
from stepwell.rendering.messages import Message, Tool
from stepwell.types import Step

AnswerEnd = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A client's request, understood and checked."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    """Those that the policy may call; empty if the client forbids calls."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    """None: as many as the gateway's default allows."""
    stop: tuple[str, ...] = ()
    """Texts before which the answer is cut."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the token counts."""
    logprobs: bool = False
    record: str = ""
    """JSON of messages and tools as sent: becomes `Step.request`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A sampled token as clients may ask to see it."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine has sampled its first token."""

    step_id: str
    trajectory_id: str
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """More of the answer's content."""

    text: str
    tokens: tuple[Token, ...] = ()
    """Sampled since the delta before; empty unless the call asked for logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The whole answer; its step is stored."""

    step: Step
    message: Message
    end: AnswerEnd
    rest: Delta
    """What no earlier delta held of the content."""
    tokens: tuple[Token, ...] = ()
    """All of them; empty unless the call asked for logprobs."""


Event = Started | Delta | Answer
"""What an exchange yields: one Started, any number of Delta, one Answer."""


class StreamWriter(Protocol):
    """Writes one streamed answer; every method returns bytes to send, possibly none."""

    def start(self) -> bytes:
        """What precedes the content."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """More content."""
        ...

    def end(self, answer: Answer) -> bytes:
        """The rest of the content, tool calls, the end's reason, token counts, and the end mark."""
        ...

    def error(self, problem: Problem) -> bytes:
        """The answer cannot be completed; nothing follows."""
        ...


class Dialect(Protocol):
    """One wire format. Stateless: one instance serves all calls."""

    @property
    def path(self) -> str:
        """Route below the base URL, such as `/chat/completions`."""
        ...

    def parse(self, body: Any) -> ChatCall:
        """Understand a request's JSON.

        Raises:
            InvalidRequest: a field is wrong, or asks for something that cannot be honoured; the message names it.
        """
        ...

    def answer(self, call: ChatCall, answer: Answer) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def writer(self, call: ChatCall, started: Started) -> StreamWriter:
        """A writer for one streamed answer."""
        ...
