"""BFCL multi-turn: a user asks for one thing after another, and an agent calls the tools of stateful programs.

The base conversations (199 of 200) of the Berkeley Function Calling Leaderboard v4, from the package `bfcl-eval`
(Apache-2.0). A turn of the user ends when the agent answers without a call; then the next request is given. After each
the leaderboard's two checks are made: the programs are in the state that the reference solution leads to, and what its
calls say has been said to the agent. A conversation is solved if all turns pass.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import Field

from stepwell.environments.bfcl_world import Conversation, Instances, Programs, run_call, run_gold
from stepwell.environments.rows import held_out
from stepwell.environments.tool_arguments import Misused
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message, Tool
from stepwell.rollout.env import Environment, Outcome, TaskSet, TaskSetConfig

_TEST_SHARE: Final = 0.2
_SYSTEM: Final = (
    "You do what the user asks by calling the tools, as many as are needed. When a request is done, or cannot be done, "
    "answer without calling a tool; the user then goes on."
)


class BFCLConfig(TaskSetConfig):
    """Settings of BFCL multi-turn."""

    max_steps: int = Field(default=20, ge=1)
    """Assistant messages for one request, after which the episode is truncated, unsolved. The leaderboard allows 20."""
    turn_weight: float = Field(default=0.0, ge=0)
    """Earned over all requests together, a share for each whose checks pass, at once; reward part `turn`."""

    def build(self) -> TaskSet:
        """The task set with these settings; see `BFCL` for what it may raise."""
        return BFCL(self)


class BFCL:
    """The task set: `multi_turn_base_N`, a fifth of them held out by a hash of the id."""

    name: Final = "bfcl"

    def __init__(self, config: BFCLConfig) -> None:
        """Read the conversations.

        Raises:
            MissingDependency: the package is not installed.
        """
        self._config = config
        self._programs = Programs()
        self._conversations = {one.id: one for one in self._programs.conversations()}

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of `train` or `test`, in the leaderboard's order.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in ("train", "test"):
            raise InvalidRequest(f"no split {split!r}; use train or test")
        return [key for key in self._conversations if held_out(key, _TEST_SHARE) == (split == "test")]

    def task_type(self, task_id: str) -> str:
        """The programs that the conversation is about."""
        known = self._conversations.get(task_id)
        return "+".join(sorted(known.classes)) if known else ""

    def make(self) -> Environment:
        """A fresh episode."""
        return BFCLEnvironment(self._config, self._programs, self._conversations)


@dataclass(frozen=True, slots=True)
class _State:
    """An episode under way. Both sets of programs change with it, so a copy of it copies these."""

    conversation: Conversation
    programs: Instances
    gold: Instances
    """Where the reference solution stands: as after the requests before this one."""
    request: int = 0
    steps: int = 0
    """Assistant messages for this request."""
    called: bool = False
    """Whether a tool was called for this request."""
    results: tuple[str, ...] = field(default=())
    """What tools said, from the beginning."""
    passed: bool = True
    """Every check so far."""


class BFCLEnvironment:
    """One episode. Its state is copied deeply (1 to 3 ms)."""

    def __init__(self, config: BFCLConfig, programs: Programs, conversations: Mapping[str, Conversation]) -> None:
        """Made by `BFCL.make`."""
        self._config = config
        self._programs = programs
        self._conversations = conversations
        self._tools: Mapping[str, Tool] = {}
        self._state: _State | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Those of the conversation's programs; none before `reset`."""
        return tuple(self._tools.values())

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Make the first request.

        Raises:
            NotFound: there is no such task.
        """
        conversation = self._conversations.get(task_id)
        if conversation is None:
            raise NotFound(f"there is no BFCL task {task_id!r}: they are called multi_turn_base_N, N from 0 to 199")
        self._tools = self._programs.tools(conversation)
        self._state = _State(conversation, self._programs.begin(conversation), self._programs.begin(conversation))
        return (Message(role="system", content=_SYSTEM), Message(role="user", content=conversation.requests[0]))

    def step(self, action: Message) -> Outcome:
        """Call the tools in order; a message without a call ends the request, and the last request the episode.

        Raises:
            InvalidRequest: no episode is running.
        """
        if self._state is None:
            raise InvalidRequest("no episode is running: call reset first")
        if not action.tool_calls:
            return self._next_request(self._state)
        results, invalid, said = [], 0, list(self._state.results)
        for call in action.tool_calls:
            try:
                content = run_call(self._state.programs, self._tools, call)
                said.append(content)
            except Misused as mistake:
                content, invalid = f"Error: {mistake}", invalid + 1
            results.append(Message(role="tool", content=content, tool_call_id=call.id))
        valid = len(action.tool_calls) - invalid
        steps, called = self._state.steps + 1, self._state.called or valid > 0
        self._state = replace(self._state, steps=steps, called=called, results=tuple(said))
        if steps >= self._config.max_steps:
            self._state = None
            return Outcome(truncated=True, reward_parts=(("solved", 0.0),), invalid_calls=invalid)
        return Outcome(messages=tuple(results), invalid_calls=invalid)

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._tools, _copied(self._state)

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        self._tools, state = snapshot
        self._state = _copied(state)

    def _next_request(self, state: _State) -> Outcome:
        right = self._right(state)
        state = replace(state, request=state.request + 1, steps=0, called=False, passed=state.passed and right)
        requests = state.conversation.requests
        share = self._config.turn_weight / len(requests) * right
        parts = (("turn", share),) if self._config.turn_weight else ()
        if state.request < len(requests):
            self._state = state
            asked = Message(role="user", content=requests[state.request])
            return Outcome(messages=(asked,), reward_parts=parts)
        self._state = None
        return Outcome(terminated=True, reward_parts=(("solved", float(state.passed)), *parts))

    def _right(self, state: _State) -> bool:
        """Whether the request was fulfilled, as the leaderboard decides it; where nothing is to be done it is."""
        calls = state.conversation.gold[state.request]
        wanted = run_gold(state.gold, calls)
        if not calls:
            return True
        return (
            state.called
            and self._programs.same_state(state.programs, state.gold)
            and self._programs.has_results(list(state.results), wanted)
        )


def _copied(state: _State | None) -> _State | None:
    if state is None:
        return None
    return replace(state, programs=copy.deepcopy(state.programs), gold=copy.deepcopy(state.gold))
