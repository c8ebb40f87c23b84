"""Environments and agents that do what a test tells them, and a pool to record what they did."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from stepwell.errors import NotFound
from stepwell.pool.base import Pool
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.wire import answer_to_json
from stepwell.rollout.agent import Action
from stepwell.rollout.env import Outcome
from stepwell.types import Step

GO_ON = Outcome(messages=(Message(role="user", content="go on"),))
DONE = Outcome(terminated=True, reward_parts=(("solved", 1.0),))


def paid(value: float, name: str = "reward") -> Outcome:
    """The episode goes on, and this step earned something."""
    return Outcome(messages=GO_ON.messages, reward_parts=((name, value),))


@dataclass
class ScriptedEnvironment:
    """Gives the outcomes one after the other; an exception among them is raised."""

    outcomes: Sequence[Outcome | Exception]
    taken: list[Message] = field(default_factory=list)
    tools: tuple[Tool, ...] = ()

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        if task_id == "missing":
            raise NotFound("there is no such task")
        self.taken.clear()
        return (Message(role="user", content=task_id),)

    def step(self, action: Message) -> Outcome:
        self.taken.append(action)
        outcome = self.outcomes[len(self.taken) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@dataclass
class ScriptedTasks:
    """Episode k plays `scripts[k]`; the last one from then on."""

    scripts: Sequence[Sequence[Outcome | Exception]]
    made: int = 0
    name: str = "scripted"

    def tasks(self, split: str) -> Sequence[str]:
        return [f"{split}-{number}" for number in range(100)]

    def make(self) -> ScriptedEnvironment:
        script = self.scripts[min(self.made, len(self.scripts) - 1)]
        self.made += 1
        return ScriptedEnvironment(script)


@dataclass
class ScriptedAgent:
    """Stores a step per turn, as a gateway would, and says `turn k`; `before` may raise or wait instead."""

    pool: Pool
    before: Callable[[int], object] = lambda turn: None
    answers: Iterator[str] | None = None
    """What it says instead, one after the other."""
    version: int = 0
    """Of the policy, as the steps say."""
    seen: list[tuple[str, ...]] = field(default_factory=list)
    """Contents of the messages of each call."""
    running: int = 0
    most: int = 0
    """Most calls that ran at once."""

    async def act(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            self.seen.append(tuple(message.content for message in messages))
            turn = sum(message.role == "assistant" for message in messages)
            waiting = self.before(turn)
            if asyncio.iscoroutine(waiting):
                await waiting
            answer = Message(role="assistant", content=next(self.answers) if self.answers else f"turn {turn}")
            step = Step(
                trajectory_id=trajectory_id,
                index=turn,
                prompt_ids=[1, 2],
                response_ids=[3],
                logprobs=[-0.5],
                policy_version_min=self.version,
                policy_version_max=self.version,
                response=answer_to_json(answer),
            )
            await asyncio.wrap_future(self.pool.append([step]))
            return Action(answer, step.id)
        finally:
            self.running -= 1

    async def count(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        return sum(len(message.content.split()) for message in messages)

    async def look(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        turn = sum(message.role == "assistant" for message in messages)
        self.before(turn)
        step = Step(
            trajectory_id=trajectory_id, index=turn, prompt_ids=[1, 2], response_ids=[3], logprobs=[-0.5], side="state"
        )
        await asyncio.wrap_future(self.pool.append([step]))


def endless(prefix: str = "task"):
    """Names of tasks, for ever."""
    return (f"{prefix}-{number}" for number in itertools.count())
