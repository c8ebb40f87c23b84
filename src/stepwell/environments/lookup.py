"""A tiny tool-use task: `find ab` → search ab → open the box that it names → answer what is in it.

Every name is two random letters, drawn anew for each task, so nothing can be memorised: a policy has to copy from what
it was told. Reward 1 for the right answer at the end, nothing before. A transformer of 0.4 million parameters learns it
within minutes on one core, which makes it the task for tests and for watching curves.
"""

import json
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from stepwell.environments.toolcalls import text_argument, text_tool
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rollout.env import Environment, Outcome, TaskSet, TaskSetConfig

_TASKS: Final = 100_000
_SPLITS: Final = ("train", "test")
_NOTHING: Final = "none"

_PARAMETER: Final = {"search": "item", "open": "box", "answer": "colour"}
TOOLS: Final = (
    text_tool("search", "item", "Name the box that an item is in."),
    text_tool("open", "box", "Name what is in a box."),
    text_tool("answer", "colour", "End the task with an answer."),
)


@dataclass(frozen=True, slots=True)
class _Secrets:
    """What a task hides: `item` is in `box`, which holds `colour`."""

    item: str
    box: str
    colour: str

    @classmethod
    def of(cls, task_id: str) -> "_Secrets":
        draw = random.Random(task_id)
        return cls(*("".join(draw.choices(string.ascii_lowercase, k=2)) for _ in range(3)))

    def solution(self) -> tuple[tuple[str, str], ...]:
        """(tool, argument) of each turn that solves the task."""
        return (("search", self.item), ("open", self.box), ("answer", self.colour))


class Lookup:
    """One episode of the task."""

    tools = TOOLS

    def __init__(self, max_turns: int) -> None:
        self._max_turns = max_turns
        self._secrets = _Secrets("", "", "")
        self._turns = 0

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Name the item to find."""
        if task_id.partition("-")[0] not in _SPLITS:
            raise NotFound(f"there is no lookup task {task_id!r}: they are called train-N and test-N")
        self._secrets = _Secrets.of(task_id)
        self._turns = 0
        return (Message(role="user", content=f"find {self._secrets.item}"),)

    def step(self, action: Message) -> Outcome:
        """Answer a tool call; a reply that is none, or an answer, ends the episode."""
        self._turns += 1
        if len(action.tool_calls) != 1 or action.tool_calls[0].name == "answer":
            return Outcome(reward_parts=(("solved", float(self._solves(action))),), terminated=True)
        if self._turns >= self._max_turns:
            return Outcome(truncated=True)
        (call,) = action.tool_calls
        return Outcome(messages=(Message(role="tool", content=self._look(call), tool_call_id=call.id),))

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._secrets, self._turns

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        self._secrets, self._turns = snapshot

    def _look(self, call: ToolCall) -> str:
        known = {("search", self._secrets.item): self._secrets.box, ("open", self._secrets.box): self._secrets.colour}
        return known.get((call.name, text_argument(call, _PARAMETER) or ""), _NOTHING)

    def _solves(self, action: Message) -> bool:
        return [text_argument(call, _PARAMETER) for call in action.tool_calls] == [self._secrets.colour]


class LookupConfig(TaskSetConfig):
    """Settings of the lookup task."""

    max_turns: int = Field(default=3, ge=1)
    """Turns after which an episode is truncated; 3 are enough."""

    def build(self) -> TaskSet:
        """The task set with these settings."""
        return LookupTasks(self)


class LookupTasks:
    """100,000 tasks per split, drawn from their ids."""

    name = "lookup"

    def __init__(self, config: LookupConfig) -> None:
        self._config = config

    def tasks(self, split: str) -> Sequence[str]:
        """`train-0` … or `test-0` …

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in _SPLITS:
            raise InvalidRequest(f"no split {split!r}; use {' or '.join(_SPLITS)}")
        return [f"{split}-{n}" for n in range(_TASKS)]

    def make(self) -> Environment:
        """A fresh episode."""
        return Lookup(self._config.max_turns)

    def demonstration(self, seed: int, wrong: float) -> tuple[Message, ...]:
        """A conversation of correct form in which each argument is, with probability `wrong`, a random name.

        Warm-up data: a policy that imitates it calls tools in the right form and with the right name only mostly, so
        that it seldom gets all three turns right; relying on what the tools say is left to be learnt from reward.
        """
        draw = random.Random(f"demonstration-{seed}")
        task_id = f"train-{draw.randrange(10**9)}"
        environment = Lookup(self._config.max_turns)
        messages = list(environment.reset(task_id))
        for turn, (tool, right) in enumerate(_Secrets.of(task_id).solution()):
            name = "".join(draw.choices(string.ascii_lowercase, k=2)) if draw.random() < wrong else right
            call = ToolCall(id=f"call-{turn}", name=tool, arguments=json.dumps({_PARAMETER[tool]: name}))
            action = Message(role="assistant", tool_calls=(call,))
            messages += [action, *environment.step(action).messages]
        return tuple(messages)
