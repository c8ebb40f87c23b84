"""Items that a client sends, put together to messages: one assistant message for all that one step has said.

Ids of items and responses carry the id of the step that they come from, so that a client may refer to them.
"""

import base64
import binascii
import re
from typing import Final, Literal

from stepwell.gateway.dialects.fields import Fields, invalid
from stepwell.gateway.dialects.openai import echoed_call
from stepwell.gateway.dialects.requests import text_of
from stepwell.rendering.messages import Message, ToolCall

_ID: Final = re.compile(r"(?:resp|msg|rs|fc)_([^_]+)(?:_\d+)?", re.ASCII)
_STEP: Final = "step-"  # begins the ids of all steps that are made here; other servers' items have ids of their own
_SEALED: Final = "sw1."
# Traces of tools that other servers have; they carry no words.
_IGNORED: Final = frozenset(
    {
        "code_interpreter_call",
        "computer_call",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)


def step_of(item_id: str, place: str) -> str:
    """The step that an item or response is of. Raises InvalidRequest if the id is not one that was given out here."""
    match = _ID.fullmatch(item_id)
    if match is None:
        raise invalid(place, f"{item_id!r} is not an id that this server gave out")
    return match[1]


def seal(reasoning: str) -> str:
    """Reasoning as `encrypted_content`: it comes back even from clients that drop the words themselves."""
    return _SEALED + base64.b64encode(reasoning.encode()).decode()


def _unseal(sealed: str | None) -> str:
    if not sealed or not sealed.startswith(_SEALED):
        return ""
    try:
        return base64.b64decode(sealed[len(_SEALED) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


class Conversation:
    """Messages from items, added in order; `close` after the last."""

    def __init__(self) -> None:
        """Begin with no messages."""
        self.messages: list[Message] = []
        self.recalled: list[tuple[int, str]] = []
        self._step = ""  # that the open assistant message is of, if known
        self._recalled = False
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []

    def say(self, role: Literal["system", "user"], content: str) -> None:
        """Add a message that is not the assistant's."""
        self._end_turn(Message(role=role, content=content))

    def close(self) -> None:
        """End the assistant message that is open."""
        if self._recalled or self._reasoning or self._texts or self._calls:
            if self._recalled:
                self.recalled.append((len(self.messages), self._step))
            message = Message(
                role="assistant",
                content="".join(self._texts),
                reasoning="".join(self._reasoning),
                tool_calls=tuple(self._calls),
            )
            self.messages.append(message)
        self._step, self._recalled = "", False
        self._reasoning, self._texts, self._calls = [], [], []

    def add(self, item: Fields) -> None:
        """Add one item. Raises InvalidRequest."""
        kind = item.text("type") or ("message" if item.has("role") else "item_reference")
        match kind:
            case "message":
                self._add_message(item)
            case "function_call" | "custom_tool_call":
                self._add_call(item, kind)
            case "function_call_output" | "custom_tool_call_output":
                output = text_of(item, "output")
                self._end_turn(Message(role="tool", content=output, tool_call_id=item.text("call_id")))
            case "reasoning":
                self._add_reasoning(item)
            case "item_reference":
                self._refer(item)
            case _ if kind not in _IGNORED:
                raise invalid(item.place("type"), f"an item of type {kind!r} is not supported")

    def _end_turn(self, message: Message) -> None:
        self.close()
        self.messages.append(message)

    def _add_message(self, item: Fields) -> None:
        match item.text("role"):
            case "assistant":
                self._go_on(item, full=bool(self._texts))
                self._texts.append(text_of(item, "content", between=""))
            case "user":
                self.say("user", text_of(item, "content"))
            case "system" | "developer":
                self.say("system", text_of(item, "content"))
            case _:
                raise invalid(item.place("role"), "must be system, developer, user or assistant")

    def _add_call(self, item: Fields, kind: str) -> None:
        self._go_on(item, full=False)
        call_id = item.text("call_id") or ""
        if kind == "function_call":
            self._calls.append(echoed_call(call_id, item, item.text("namespace") or ""))
        else:
            self._calls.append(ToolCall(id=call_id, name=item.name("name"), arguments=item.text("input") or ""))

    def _add_reasoning(self, item: Fields) -> None:
        self._go_on(item, full=bool(self._texts))
        words = text_of(item, "summary", between="") or text_of(item, "content", between="")
        self._reasoning.append(words or _unseal(item.text("encrypted_content")))

    def _refer(self, item: Fields) -> None:
        step = step_of(item.name("id"), item.place("id"))
        if self._step != step:
            self.close()
        self._step, self._recalled = step, True

    def _go_on(self, item: Fields, *, full: bool) -> None:
        """Begin another assistant message if the item is of another step; where ids do not tell, if it is `full`.

        A message with calls is never full: their results come before the next step's items.
        """
        match = _ID.fullmatch(item.text("id") or "")
        step = match[1] if match and match[1].startswith(_STEP) else ""
        other = step != self._step if step and self._step else full and not self._calls
        if other:
            self.close()
        self._step = self._step or step
