"""A small finite decision process in words: everything about it can be computed, so theory can be checked on rollouts.

H turns, S states, A actions, drawn from a seed. The agent is told the turn and the state, and names an action; the
next state is drawn from a distribution that belongs to turn, state and action; the last state's worth, in 0..1, is the
reward. A policy here is a table [H, S, A], and its value is exact (`Process.values`). An episode's seed decides all its
draws, one for each turn, whatever was done before: forks of one state see the same luck.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepwell.environments.toolcalls import text_argument, text_tool
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message, Tool
from stepwell.rollout.env import Environment, Outcome, TaskSetConfig

Table = npt.NDArray[np.float64]

_TASKS: Final = 1000
_SPLITS: Final = ("train", "test")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_PARAMETER: Final = {"act": "action"}
TOOLS: Final = (text_tool("act", "action", "Take an action, named by its letter."),)


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A decision process with a finite horizon; its reward comes at the end only."""

    moves: Table
    """[H, S, A, S]: probability of the next state."""
    worth: Table
    """[S]: reward of ending there, 0..1."""

    @classmethod
    def draw(cls, seed: int, turns: int, states: int, actions: int) -> "Process":
        """One at random: few next states are likely, and worths differ."""
        source = np.random.default_rng(seed)
        return cls(source.dirichlet([0.3] * states, (turns, states, actions)), source.random(states))

    def values(self, policy: Table) -> tuple[Table, Table]:
        """V [H + 1, S] and Q [H, S, A] of a policy [H, S, A]: expected reward from a state, and after an action there.

        Exact, by backward induction.
        """
        turns, states, actions, _ = self.moves.shape
        v, q = np.zeros((turns + 1, states)), np.zeros((turns, states, actions))
        v[turns] = self.worth
        for turn in reversed(range(turns)):
            q[turn] = self.moves[turn] @ v[turn + 1]
            v[turn] = (policy[turn] * q[turn]).sum(-1)
        return v, q

    def best(self) -> Table:
        """A policy [H, S, A] that nothing beats: in each state all on one action."""
        turns, states, actions, _ = self.moves.shape
        policy, v = np.zeros((turns, states, actions)), self.worth
        for turn in reversed(range(turns)):
            q = self.moves[turn] @ v
            policy[turn] = np.eye(actions)[q.argmax(-1)]
            v = q.max(-1)
        return policy

    def next_state(self, turn: int, state: int, action: int, luck: float) -> int:
        """The state that follows; `luck` is uniform in [0, 1)."""
        chances = self.moves[turn, state, action].cumsum()
        return min(int(np.searchsorted(chances, luck, side="right")), len(chances) - 1)


class ChainConfig(TaskSetConfig):
    """Settings of the decision process in words."""

    turns: int = Field(default=3, ge=1, le=100)
    """H: actions of an episode."""
    states: int = Field(default=3, ge=1, le=26)
    """S."""
    actions: int = Field(default=3, ge=1, le=26)
    """A."""
    process_seed: int = Field(default=0, ge=0)
    """Decides the process; the draws within an episode are the rollout's."""

    def build(self) -> "Chain":
        """The task set with these settings."""
        return Chain(self)


class Chain:
    """The task set: one process, which a task begins in a state. Task N of a split begins in state N modulo S."""

    name: Final = "chain"

    def __init__(self, config: ChainConfig) -> None:
        """Draw the process."""
        self.process = Process.draw(config.process_seed, config.turns, config.states, config.actions)

    def tasks(self, split: str) -> Sequence[str]:
        """`train-0` … or `test-0` …

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in _SPLITS:
            raise InvalidRequest(f"no split {split!r}; use {' or '.join(_SPLITS)}")
        return [f"{split}-{number}" for number in range(_TASKS)]

    def first_state(self, task_id: str) -> int:
        """Where a task begins.

        Raises:
            NotFound: there is no such task.
        """
        split, _, number = task_id.partition("-")
        if split not in _SPLITS or not (number.isascii() and number.isdecimal()):
            raise NotFound(f"there is no chain task {task_id!r}: they are called train-N and test-N")
        return int(number) % self.process.worth.size

    def task_type(self, task_id: str) -> str:
        """The state that it begins in."""
        return f"state {_LETTERS[self.first_state(task_id)]}"

    def make(self) -> Environment:
        """A fresh episode."""
        return ChainEnvironment(self)


@dataclass(frozen=True, slots=True)
class _State:
    seed: int
    turn: int
    state: int


class ChainEnvironment:
    """One episode of the process."""

    def __init__(self, tasks: Chain) -> None:
        """Made by `Chain.make`."""
        self._tasks = tasks
        self._now: _State | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """`act(action)`."""
        return TOOLS

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        """Say where it begins.

        Raises:
            NotFound: there is no such task.
        """
        self._now = _State(seed, 0, self._tasks.first_state(task_id))
        return (Message(role="user", content=self._told(self._now)),)

    def step(self, action: Message) -> Outcome:
        """Take an action, called or just said. One that does not exist is told so, and the turn passes in that state.

        Raises:
            InvalidRequest: no episode is running.
        """
        if self._now is None:
            raise InvalidRequest("no episode is running: call reset first")
        process, now, chosen = self._tasks.process, self._now, self._chosen(action)
        state = now.state
        if chosen is not None:
            luck = random.Random(f"chain-{now.seed}-{now.turn}").random()
            state = process.next_state(now.turn, now.state, chosen, luck)
        self._now = replace(now, turn=now.turn + 1, state=state)
        invalid = len(action.tool_calls) if chosen is None else 0
        if self._now.turn == len(process.moves):
            self._now = None
            worth = float(process.worth[state])
            return Outcome(terminated=True, reward_parts=(("worth", worth),), invalid_calls=invalid)
        told = self._told(self._now)
        text = told if chosen is not None else f"Error: name one action, {self._actions()}. {told}"
        return Outcome(messages=_answers(action, text), invalid_calls=invalid)

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._now

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        self._now = snapshot

    def _chosen(self, action: Message) -> int | None:
        """The action that a message names: by its one call, or, without one, by its text."""
        if len(action.tool_calls) > 1:
            return None
        said = text_argument(action.tool_calls[0], _PARAMETER) if action.tool_calls else action.content
        letter = (said or "").strip().lower()
        known = _LETTERS[: self._tasks.process.moves.shape[2]]
        return known.index(letter) if len(letter) == 1 and letter in known else None

    def _actions(self) -> str:
        return ", ".join(_LETTERS[: self._tasks.process.moves.shape[2]])

    def _told(self, now: _State) -> str:
        return f"turn {now.turn + 1} of {len(self._tasks.process.moves)}, state {_LETTERS[now.state]}"


def _answers(action: Message, text: str) -> tuple[Message, ...]:
    if not action.tool_calls:
        return (Message(role="user", content=text),)
    return tuple(Message(role="tool", content=text, tool_call_id=call.id) for call in action.tool_calls)
