"""Chat messages and tools as typed records: dialects parse wire formats into them, renderers make token ids of them."""

from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool, as the policy asked for it."""

    id: str
    """Unique in the conversation; the tool's answer refers to it."""
    name: str
    arguments: str
    """JSON text of the arguments, exactly as it was sampled or sent; so possibly broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str = ""
    reasoning: str = ""
    """Only for role `assistant`: what the policy thought before it spoke, without its marks."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only for role `assistant`."""
    tool_call_id: str | None = None
    """Only for role `tool`: which call this answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the policy may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON Schema of the arguments, an object schema."""
