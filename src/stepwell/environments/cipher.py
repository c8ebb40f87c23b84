"""A task whose length and delay of reward are settings: each turn a word is to be written in a secret cipher.

Every turn the agent is told a word, the turn, and how many answers were right so far; what is right is a fixed
substitution of letters, which it can only learn from reward. What it is told last is all that matters, so a prompt may
be made anew for each turn. Turns have nothing to do with each other but for the reward: one that comes late, or only if
all was right, hides which turn earned it. So it is credit assignment that is measured, over any number of turns, and a
model of some ten thousand parameters learns it within seconds on one core.
"""

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import Field

from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message, Tool
from stepwell.rollout.env import Outcome, TaskSetConfig

_TASKS: Final = 100_000
_SPLITS: Final = ("train", "test")


class CipherConfig(TaskSetConfig):
    """Settings of the cipher."""

    turns: int = Field(default=8, ge=1, le=100)
    """Words of an episode."""
    letters: int = Field(default=4, ge=1, le=16)
    """Letters of a word."""
    alphabet: int = Field(default=4, ge=2, le=26)
    """Different letters."""
    cipher_seed: int = Field(default=0, ge=0)
    """Decides the substitution."""
    pays: Literal["each", "all"] = "each"
    """Each right answer pays 1/turns; or an episode pays 1 at its end, if all of its answers were right."""
    delay: int = Field(default=100, ge=0)
    """Turns that lie between a right answer and its pay, which comes with the last turn at the latest."""

    def build(self) -> "Cipher":
        """The task set with these settings."""
        return Cipher(self)


class Cipher:
    """The task set: 100,000 tasks per split, whose words are drawn from their ids."""

    name: Final = "cipher"

    def __init__(self, config: CipherConfig) -> None:
        """Draw the substitution."""
        self.config = config
        self._plain = string.ascii_lowercase[: config.alphabet]
        secret = random.Random(f"cipher-{config.cipher_seed}").sample(self._plain, k=config.alphabet)
        self._substitution = str.maketrans(self._plain, "".join(secret))

    def tasks(self, split: str) -> Sequence[str]:
        """`train-0` … or `test-0` …

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in _SPLITS:
            raise InvalidRequest(f"no split {split!r}; use {' or '.join(_SPLITS)}")
        return [f"{split}-{number}" for number in range(_TASKS)]

    def words(self, task_id: str) -> tuple[str, ...]:
        """What is told, turn by turn.

        Raises:
            NotFound: there is no such task.
        """
        split, _, number = task_id.partition("-")
        if split not in _SPLITS or not (number.isascii() and number.isdecimal()):
            raise NotFound(f"there is no cipher task {task_id!r}: they are called train-N and test-N")
        draw = random.Random(f"cipher-{task_id}")
        return tuple(self.random_word(draw) for _ in range(self.config.turns))

    def random_word(self, draw: random.Random) -> str:
        """Any word."""
        return "".join(draw.choices(self._plain, k=self.config.letters))

    def secret(self, word: str) -> str:
        """The right answer to a word."""
        return word.translate(self._substitution)

    def make(self) -> "CipherEnvironment":
        """A fresh episode."""
        return CipherEnvironment(self)


@dataclass(frozen=True, slots=True)
class _State:
    words: tuple[str, ...]
    right: tuple[bool, ...] = ()
    """Of each turn so far."""


class CipherEnvironment:
    """One episode."""

    tools: tuple[Tool, ...] = ()

    def __init__(self, tasks: Cipher) -> None:
        """Made by `Cipher.make`."""
        self._tasks = tasks
        self._now: _State | None = None

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Tell the first word.

        Raises:
            NotFound: there is no such task.
        """
        self._now = _State(self._tasks.words(task_id))
        return (Message(role="user", content=_told(self._now)),)

    def step(self, action: Message) -> Outcome:
        """Look at an answer, and tell how many were right, with the next word.

        Raises:
            InvalidRequest: no episode is running.
        """
        if self._now is None:
            raise InvalidRequest("no episode is running: call reset first")
        word = self._now.words[len(self._now.right)]
        right = not action.tool_calls and action.content.strip() == self._tasks.secret(word)
        now = replace(self._now, right=(*self._now.right, right))
        parts = (("right", pay),) if (pay := self._pay(now.right)) else ()
        if len(now.right) == len(now.words):
            self._now = None
            return Outcome(reward_parts=parts, terminated=True)
        self._now = now
        return Outcome(messages=(Message(role="user", content=_told(now)),), reward_parts=parts)

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._now

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        self._now = snapshot

    def _pay(self, right: Sequence[bool]) -> float:
        """What is due after these answers: for the one that lies `delay` back, and at the end for all that are left."""
        config, turn = self._tasks.config, len(right)
        last = turn == config.turns
        if config.pays == "all":
            return float(last and all(right))
        paid, due = max(turn - 1 - config.delay, 0), turn if last else max(turn - config.delay, 0)
        return sum(right[paid:due]) / config.turns


def _told(now: _State) -> str:
    turn = len(now.right)
    return f"turn {turn + 1} of {len(now.words)}, {sum(now.right)} right: {now.words[turn]}"
