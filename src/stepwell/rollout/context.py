"""What of a conversation the policy is shown: all of it, or what a policy for contexts leaves.

An agent's prompt is the conversation as its context policy left it, and that prompt's exact ids are what is trained on.
So whatever is dropped here is dropped for good, in rollouts and in training alike: the history that nobody saw any more
is in no prompt. To add a policy, write its settings with a `fit`, and add it to `Context`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, Protocol

from pydantic import Field, model_validator

from stepwell.config import Config
from stepwell.rendering.messages import Message


@dataclass(frozen=True, slots=True)
class View:
    """A conversation, as the policy is shown it."""

    opening: tuple[Message, ...]
    """What the task began with: never dropped."""
    summary: str = ""
    """The policy's own account of turns that are not shown any more."""
    turns: tuple[tuple[Message, ...], ...] = ()
    """Each an answer of the policy, and what followed it."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of it, in order."""
        account = (Message(role="user", content=f"{_SUMMARY}{self.summary}"),) if self.summary else ()
        return (*self.opening, *account, *(message for turn in self.turns for message in turn))

    def after(self, *turn: Message) -> "View":
        """With one more turn."""
        return replace(self, turns=(*self.turns, turn))


class Desk(Protocol):
    """What a context policy may ask for."""

    async def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that these messages make."""
        ...

    async def ask(self, messages: Sequence[Message]) -> Message:
        """The policy's own answer to these messages, without tools: a step of the trajectory like any other."""
        ...


class Append(Config):
    """Show everything. Each prompt extends the one before, so prefix trees save the most."""

    use: Literal["append"] = "append"
    """Its name in a recipe."""

    async def fit(self, view: View, desk: Desk) -> View:  # noqa: ARG002
        """The view as it is."""
        return view


class Window(Config):
    """Show the task and the last turns."""

    use: Literal["window"] = "window"
    """Its name in a recipe."""
    turns: int | None = Field(default=None, ge=1)
    """At most so many of them."""
    max_tokens: int | None = Field(default=None, ge=1)
    """As many as leave the prompt at most so long; the last one stays whatever it has."""

    @model_validator(mode="after")
    def _bounded(self) -> "Window":
        if self.turns is None and self.max_tokens is None:
            raise ValueError("a window needs turns or max_tokens, else it is use: append")
        return self

    async def fit(self, view: View, desk: Desk) -> View:
        """The view without its oldest turns."""
        if self.turns is not None:
            view = replace(view, turns=view.turns[-self.turns :])
        if self.max_tokens is None:
            return view
        return await _shortened(view, desk, self.max_tokens)


class DropReasoning(Config):
    """Show what the policy thought in its last turn only, as chat templates of reasoning models do."""

    use: Literal["drop_reasoning"] = "drop_reasoning"
    """Its name in a recipe."""
    keep: int = Field(default=0, ge=0)
    """Turns, counted from the last, whose reasoning stays."""

    async def fit(self, view: View, desk: Desk) -> View:  # noqa: ARG002
        """The view without the reasoning of earlier turns."""
        old = len(view.turns) - self.keep
        turns = [tuple(map(_silent, turn)) if i < old else turn for i, turn in enumerate(view.turns)]
        return replace(view, turns=tuple(turns))


class Summarise(Config):
    """When the prompt gets too long, let the policy say what happened so far, and go on from that."""

    use: Literal["summarise"] = "summarise"
    """Its name in a recipe."""
    max_tokens: int = Field(ge=1)
    """Tokens of a prompt from which on its older turns are replaced."""
    keep: int = Field(default=1, ge=0)
    """Turns, counted from the last, that stay as they are."""
    instruction: str = (
        "Summarise what has happened so far: what you found out, what you did, and what is left to do. "
        "Your summary replaces the conversation; what it does not say is lost."
    )
    """The user's message that asks for it."""

    async def fit(self, view: View, desk: Desk) -> View:
        """The view, or one with a summary in place of its older turns."""
        old = view.turns[: max(len(view.turns) - self.keep, 0)]
        if not old or await desk.count(view.messages) <= self.max_tokens:
            return view
        answer = await desk.ask((*replace(view, turns=old).messages, Message(role="user", content=self.instruction)))
        return View(view.opening, answer.content.strip(), view.turns[len(old) :])


Context = Annotated[Append | Window | DropReasoning | Summarise, Field(discriminator="use")]
"""The context policies, by their `use`."""
_SUMMARY: Final = "What has happened so far, in your own words:\n"


async def _shortened(view: View, desk: Desk, max_tokens: int) -> View:
    """As few of the oldest turns dropped as necessary, found by bisection: a longer view never has fewer tokens."""
    low, high = 0, max(len(view.turns) - 1, 0)  # dropping `high` turns is as short as it gets
    while low < high:
        middle = (low + high) // 2
        shorter = replace(view, turns=view.turns[middle:])
        if await desk.count(shorter.messages) <= max_tokens:
            high = middle
        else:
            low = middle + 1
    return replace(view, turns=view.turns[low:])


def _silent(message: Message) -> Message:
    return replace(message, reasoning="") if message.reasoning else message
