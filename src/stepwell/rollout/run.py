"""One trajectory: an agent acts in an environment until it ends, and each fact is recorded as it becomes known."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from pydantic import Field

from stepwell.config import Config
from stepwell.errors import ContextOverflow, EngineError, EnvironmentFailed, ForkRefused, PoolError, StepwellError
from stepwell.pool.base import Receipt
from stepwell.rendering.messages import Message
from stepwell.rollout.agent import Action, Agent
from stepwell.rollout.context import Append, Context, View
from stepwell.rollout.env import Outcome, TaskSet
from stepwell.rollout.episode import Boundary, Episode
from stepwell.types import Annotation, End, Record, TrajectoryInfo

_log: Final = logging.getLogger(__name__)
ALIKE: Final = "its siblings all took the same step"
"""Why siblings that could teach nothing are not played on."""


PASSING: Final = (EngineError, EnvironmentFailed, PoolError)
"""What failed around the agent, and may go well another time."""


class Log(Protocol):
    """Where facts go: a pool, or a pool's client."""

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """As `stepwell.pool.base.Pool.append`."""
        ...

    def drop_group(self, group_id: str, reason: str) -> None:
        """As `stepwell.pool.base.Pool.drop_group`."""
        ...


class Nowhere:
    """A log that keeps nothing: of what is recorded already, or has no steps to be about."""

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:  # noqa: ARG002
        """Nothing is refused, as nothing is kept."""
        done: Future[list[Receipt]] = Future()
        done.set_result([])
        return done

    def drop_group(self, group_id: str, reason: str) -> None:
        """Nothing is dropped."""


class RolloutConfig(Config):
    """Limits of every trajectory, and what its policy is shown."""

    group_size: int = Field(default=8, ge=1)
    """Trajectories of each task that are compared with each other."""
    max_turns: int = Field(default=16, ge=1)
    """A trajectory with so many turns is truncated."""
    context: Context = Append()
    """What of the conversation the policy is shown at each turn."""
    final_state: bool = True
    """A truncated trajectory ends with one more call, of one token, that shows the policy the state in which it was cut
    off: a critic values it (see `bootstrap_on_truncation`), and nothing acts on the answer."""
    concurrency: int = Field(default=32, ge=1)
    """Trajectories that run at once."""
    workers: int = Field(default=2, ge=1)
    """Processes that share them, where the mode is not `inline`."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds that one trajectory may take; a slower one has failed and is replaced. Null: as long as it likes."""
    step_timeout: float | None = Field(default=300.0, gt=0)
    """Seconds that one step of the environment may take, of a tool that hangs, say."""
    max_observation: int = Field(default=100_000, ge=1)
    """Characters of one message of the environment that the policy is shown; the middle of a longer one is left out."""
    seed: int = Field(default=0, ge=0)
    """Of the environments: each trajectory has a seed of its own that follows from it; forks have their origin's."""
    max_failures: int = Field(default=3, ge=0)
    """Failed trajectories of one group that are replaced before the rollout is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a trajectory went."""

    trajectory_id: str
    task_id: str = ""
    how: End
    why: str = ""
    retry: bool = False
    """Of a failure: whether the same may go well another time. It was something around the agent that failed."""
    refused: bool = False
    """Of a failure: whether its environment, or its agent, did not get to the state that it was to begin in."""
    reward: float = 0.0
    measured: Mapping[str, float] = field(default_factory=dict)
    """Parts of the reward, summed by name, and what the environment measured beside them."""
    turns: int = 0
    tool_calls: int = 0
    invalid_calls: int = 0
    """Those of them that the environment did not understand."""
    prompt_tokens: int = 0
    """Of all turns, each with its whole prompt."""
    response_tokens: int = 0
    policy_seconds: float = 0.0
    environment_seconds: float = 0.0
    judge_seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    """Where a trajectory begins that is not its task's beginning: before one of the steps of another one."""

    step: int
    """Index of that step."""
    boundary: Boundary | None = None
    """The state then; None where the gateway leads the agent there, by answers from the record."""
    view: View | None = None
    """What the policy was shown then."""
    origin_id: str = ""
    """That trajectory, where only the gateway's record of it tells what came before."""


class Gate(Protocol):
    """Holds several trajectories back until it has seen the first action of each."""

    async def passes(self, action: Message) -> bool:
        """Whether to go on; waits for the others."""
        ...

    def leave(self) -> None:
        """A trajectory that ended, or failed, before its action."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """How a trajectory begins."""

    seed: int = 0
    """Of its environment. A fork has that of the trajectory that it comes from."""
    fork: Fork | None = None
    """Begin there instead of at the task's beginning."""
    gate: "Gate | None" = None
    """Asked after the first action of an environment's episode whether to go on."""
    forks: list[Fork] | None = None
    """Gets the state before each turn; an environment that cannot be forked then fails the trajectory."""
    begun: Callable[[], None] = lambda: None
    """Called when there is a place for it."""


class Player(Protocol):
    """Plays trajectories, whatever that takes."""

    @property
    def agent(self) -> str:
        """Who acts, for the record."""
        ...

    async def play(self, info: TrajectoryInfo, start: Start) -> Ending:
        """Play one trajectory and record all of it. Whatever goes wrong is a failed trajectory, but cancellation."""
        ...


@dataclass(frozen=True, slots=True)
class EnvironmentPlayer:
    """An agent in the environments of a task set."""

    tasks: TaskSet
    actor: Agent
    log: Log
    config: RolloutConfig

    @property
    def agent(self) -> str:
        """See `Player`."""
        return type(self.actor).__name__

    async def play(self, info: TrajectoryInfo, start: Start) -> Ending:
        """See `run_trajectory`."""
        return await run_trajectory(info, self.tasks, self.actor, self.log, self.config, start)


async def record(log: Log, *records: Record) -> None:
    """Append and wait until it is durable; raises the first refusal."""
    for receipt in await asyncio.wrap_future(log.append(records)):
        if receipt.error is not None:
            raise receipt.error


async def run_trajectory(
    info: TrajectoryInfo,
    tasks: TaskSet,
    agent: Agent,
    log: Log,
    config: RolloutConfig,
    start: Start = Start(),
) -> Ending:
    """Play one episode. Whatever goes wrong is recorded as a failed trajectory; only cancellation is passed on.

    An episode that ends without having earned anything is recorded with reward 0: that it earned nothing is known.

    Args:
        info: What is known of the trajectory beforehand.
        tasks: Make its environment.
        agent: Acts.
        log: Where everything is recorded.
        config: Limits.
        start: Where it begins.
    """
    await record(log, info)
    play = _Play(info, tasks, agent, log, config, start)
    try:
        async with asyncio.timeout(config.timeout):
            await play.run()
    except asyncio.CancelledError:
        await record(log, Annotation.end(info.id, "failed", "cancelled"))
        raise
    except Exception as error:  # a rollout that breaks is data, whatever broke it
        play.failed(error)
    finally:
        play.leave()
    ending = play.ending
    await record(log, Annotation.end(info.id, ending.how, ending.why))
    return ending


@dataclass
class _Play:
    """A trajectory under way."""

    info: TrajectoryInfo
    tasks: TaskSet
    agent: Agent
    log: Log
    config: RolloutConfig
    start: Start
    ending: Ending = field(init=False)
    steps: int = 0
    """Taken so far, before a fork too."""
    gate: Gate | None = field(init=False)
    """Until the first action has passed it."""

    def __post_init__(self) -> None:
        self.gate = self.start.gate
        self.ending = Ending(trajectory_id=self.info.id, task_id=self.info.task_id, how="failed")

    async def run(self) -> None:
        fork, forks, limit = self.start.fork, self.start.forks, self.config.step_timeout
        self.steps = 0 if fork is None else fork.step
        if forks is not None:
            forks.clear()  # an attempt before this one failed
        if fork is None:
            episode = await Episode.begin(self.tasks, self.info.task_id, seed=self.start.seed, limit=limit)
        elif fork.boundary is not None:
            episode = await Episode.fork(self.tasks, fork.boundary, limit=limit)
        else:
            raise ForkRefused("the state that the fork is to begin in was not kept")
        try:
            await self._turns(
                episode,
                View(tuple(map(self._shown, episode.opening))) if fork is None or fork.view is None else fork.view,
            )
        finally:
            self._note(environment_seconds=episode.seconds)
            await episode.close()

    def leave(self) -> None:
        """Whatever happened: nobody waits for it at a gate any more."""
        if self.gate is not None:
            self.gate.leave()

    def failed(self, error: Exception) -> None:
        """Note why. What failed around the agent may go well another time; what it asks for wrongly will not."""
        timed_out = isinstance(error, TimeoutError)
        why = f"took longer than {self.config.timeout} s" if timed_out else f"{type(error).__name__}: {error}"
        retry = timed_out or isinstance(error, PASSING)
        self._note(how="failed", why=why, retry=retry, refused=isinstance(error, ForkRefused))

    async def _turns(self, episode: Episode, view: View) -> None:
        outcome, rewarded = Outcome(), False
        desk = _Desk(self, episode)
        while not (outcome.terminated or outcome.truncated):
            if episode.turns >= self.config.max_turns:
                outcome = Outcome(truncated=True)
                self._note(why=f"{episode.turns} turns")
                break
            try:
                view = await self.config.context.fit(view, desk)
                here = None
                if self.start.forks is not None:
                    here = Fork(self.steps, await episode.boundary(), view)
                action = await self._act(view.messages, episode)
                if self.start.forks is not None and here is not None:  # only where there was room to act
                    self.start.forks.append(here)
            except ContextOverflow as overflow:
                self._note(how="truncated", why=str(overflow))
                await self._close_books(rewarded)
                return
            if not await self._passes(action.message):
                self._note(how="truncated", why=ALIKE, turns=self.ending.turns + 1)
                return
            outcome = await episode.step(action.message)
            view = view.after(action.message, *map(self._shown, outcome.messages))
            self._count(action, outcome)
            if outcome.reward_parts:
                await record(self.log, *_rewards(action.step_id, outcome))
                rewarded = True
        if outcome.truncated and self.ending.turns and self.config.final_state:
            await self._look(view, episode)
        self._note(how="terminated" if outcome.terminated else "truncated")
        await self._close_books(rewarded)

    async def _passes(self, action: Message) -> bool:
        gate, self.gate = self.gate, None
        return gate is None or await gate.passes(action)

    async def _act(self, messages: Sequence[Message], episode: Episode, *, tools: bool = True) -> Action:
        start = time.perf_counter()
        action = await self.agent.act(self.info.id, messages, episode.tools if tools else ())
        self.steps += 1
        self._note(
            policy_seconds=self.ending.policy_seconds + time.perf_counter() - start,
            prompt_tokens=self.ending.prompt_tokens + action.prompt_tokens,
            response_tokens=self.ending.response_tokens + action.response_tokens,
        )
        return action

    async def _close_books(self, rewarded: bool) -> None:
        if not rewarded:
            await record(self.log, Annotation.reward("trajectory", self.info.id, 0.0))

    async def _look(self, view: View, episode: Episode) -> None:
        """Show the policy where it was cut off. The episode is what it is, whether that works or not."""
        try:
            await self.agent.look(self.info.id, view.messages, episode.tools)
        except StepwellError as error:
            _log.warning("the state after %s was not recorded: %s", self.info.id, error)

    def _count(self, action: Action, outcome: Outcome) -> None:
        ending = self.ending
        self._note(
            turns=ending.turns + 1,
            reward=ending.reward + outcome.reward,
            measured=_measured(ending.measured, outcome),
            tool_calls=ending.tool_calls + len(action.message.tool_calls),
            invalid_calls=ending.invalid_calls + outcome.invalid_calls,
        )

    def _shown(self, message: Message) -> Message:
        """A message as the policy is shown it: without the middle of what a tool drowned everything in, and with a
        question mark for what is no character."""
        most, text = self.config.max_observation, message.content
        if len(text) > most:
            head, tail = text[: most // 2], text[len(text) - most // 2 :]
            text = f"{head}\n[{len(text) - most} characters left out]\n{tail}"
        text = text.encode(errors="replace").decode()
        return message if text == message.content else replace(message, content=text)

    def _note(self, **facts: object) -> None:
        self.ending = replace(self.ending, **facts)  # type: ignore[arg-type]  # names of its own fields


@dataclass(frozen=True)
class _Desk:
    """What the context policy of a trajectory may ask for."""

    play: _Play
    episode: Episode

    async def count(self, messages: Sequence[Message]) -> int:
        return await self.play.agent.count(messages, self.episode.tools)

    async def ask(self, messages: Sequence[Message]) -> Message:
        return (await self.play._act(messages, self.episode, tools=False)).message


def _measured(before: Mapping[str, float], outcome: Outcome) -> Mapping[str, float]:
    if not outcome.reward_parts and not outcome.measured:
        return before
    parts = dict(before)
    for name, value in outcome.reward_parts:
        parts[name] = parts.get(name, 0.0) + value
    return {**parts, **dict(outcome.measured)}


def _rewards(step_id: str, outcome: Outcome) -> list[Annotation]:
    return [Annotation.reward("step", step_id, value, name) for name, value in outcome.reward_parts]
