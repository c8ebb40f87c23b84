"""Worlds that are played by commands in words, such as `go to desk 1`: from a message to commands, and back.

There are two ways to give a command. With the interface `tool` the policy calls `act(command)`, in whatever format its
model has for calls; this suits models that were taught to call tools, and, in the line format, small ones that were
not. With `text` the message itself is the command: what stands in its last `<action>…</action>`, else its last line.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from stepwell.environments.toolcalls import text_argument, text_tool
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Outcome

Interface: TypeAlias = Literal["tool", "text"]

_LONGEST: Final = 200
"""Characters of a command: no world has longer ones, and nobody waits for a parser that reads a novel."""
_PARAMETER: Final = {"act": "command"}
_TOOLS: Final[dict[str, tuple[Tool, ...]]] = {
    "tool": (text_tool("act", "command", "Do something: one command."),),
    "text": (),
}
_HOW: Final = {
    "tool": "Each turn, call `act` with one command.",
    "text": "Each turn, write one command, on a line of its own.",
}
_NOTHING_SAID: Final = {"tool": "Error: call act with one command.", "text": "Error: write one command."}
_TAGGED: Final = re.compile(r"<action>(.*?)</action>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What a command brought."""

    text: str = ""
    """What the policy is told."""
    reward_parts: tuple[tuple[str, float], ...] = ()
    terminated: bool = False


@dataclass(frozen=True, slots=True)
class _Order:
    """A command, or what is wrong with what should have been one."""

    command: str = ""
    mistake: str = ""
    call: ToolCall | None = None


@dataclass(slots=True)
class _Played:
    """What the commands of a message brought so far."""

    messages: list[Message] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    invalid: int = 0

    def outcome(self, *, terminated: bool = False, truncated: bool = False) -> Outcome:
        ended = terminated or truncated
        return Outcome(
            messages=() if ended else tuple(self.messages),
            reward_parts=tuple(self.rewards.items()),
            terminated=terminated,
            truncated=truncated,
            invalid_calls=self.invalid,
        )


def offered(interface: Interface) -> tuple[Tool, ...]:
    """The tools of an interface."""
    return _TOOLS[interface]


def how_to_act(interface: Interface) -> str:
    """A sentence for the instructions."""
    return _HOW[interface]


def listed(commands: Iterable[str]) -> str:
    """A line that says which commands are possible."""
    return f"\nYou can: {'; '.join(sorted(commands))}."


def carried_out(
    action: Message, interface: Interface, act: Callable[[str], Reaction], left: int
) -> tuple[Outcome, int]:
    """Give the commands of a message to `act`, in order, until one ends the episode or none is `left`.

    Returns what followed, and how many commands were used up. What is no command uses one up too, and is answered with
    a short error; equal reward parts of several commands are added.
    """
    played = _Played()
    used = 0
    for order in _orders(action, interface):
        used += 1
        played.invalid += bool(order.mistake and order.call)
        reaction = Reaction(text=order.mistake) if order.mistake else act(order.command)
        for name, value in reaction.reward_parts:
            played.rewards[name] = played.rewards.get(name, 0.0) + value
        if reaction.terminated or used >= left:
            return played.outcome(terminated=reaction.terminated, truncated=not reaction.terminated), used
        played.messages.append(_answer(order.call, reaction.text))
    return played.outcome(), used


def _answer(call: ToolCall | None, text: str) -> Message:
    if call is None:
        return Message(role="user", content=text)
    return Message(role="tool", content=text, tool_call_id=call.id)


def _orders(action: Message, interface: Interface) -> Iterator[_Order]:
    if interface == "text":
        yield from (_Order(mistake="Error: there are no tools here.", call=call) for call in action.tool_calls)
        if action.content.strip() or not action.tool_calls:
            yield _order(_spoken(action.content), interface)
        return
    for call in action.tool_calls:
        yield _called(call)
    if not action.tool_calls:
        yield _Order(mistake=_NOTHING_SAID[interface])


def _called(call: ToolCall) -> _Order:
    if call.name not in _PARAMETER:
        return _Order(mistake=f"Error: there is no tool {call.name[:40]!r}; use act.", call=call)
    text = text_argument(call, _PARAMETER)
    if text is None:
        return _Order(mistake="Error: act takes one text called command.", call=call)
    return _order(text, "tool", call)


def _order(text: str, interface: Interface, call: ToolCall | None = None) -> _Order:
    # Half a surrogate pair may stand in JSON, and is no text that any world could be given.
    command = " ".join(text.encode("utf-8", "replace").decode("utf-8").split())
    if not command:
        return _Order(mistake=_NOTHING_SAID[interface], call=call)
    if len(command) > _LONGEST:
        return _Order(mistake=f"Error: a command has at most {_LONGEST} characters.", call=call)
    return _Order(command=command, call=call)


def _spoken(content: str) -> str:
    """The command that a plain message gives."""
    tagged = _TAGGED.findall(content)
    if tagged:
        return str(tagged[-1])
    lines = [line.strip() for line in content.splitlines()]
    return next((line.removeprefix(">") for line in reversed(lines) if line), "")
