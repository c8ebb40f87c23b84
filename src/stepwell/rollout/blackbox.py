"""Agents that nobody changes: a command, a Python function or a service is given a base URL and a task, and left alone.

Whatever SDK such an agent uses, its calls arrive at the gateway below the path of its trajectory, and are recorded
there. When it is done it is rewarded by what it leaves behind: its exit code, a file, or a function of all of that and
of the transcript. A fork of it needs nothing either: the gateway answers its first calls from the record (see
`stepwell.gateway.origin`).
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from stepwell.errors import (
    EngineError,
    EnvironmentFailed,
    ForkRefused,
    InvalidRequest,
    NotFound,
    PoolError,
    StepwellError,
)
from stepwell.rendering.messages import Message
from stepwell.rendering.wire import answer_from_json
from stepwell.rollout.agent import Agent
from stepwell.rollout.env import TaskSet
from stepwell.rollout.run import (
    ALIKE,
    Ending,
    EnvironmentPlayer,
    Fork,
    Gate,
    Log,
    Player,
    RolloutConfig,
    Start,
    record,
)
from stepwell.types import Annotation, Step, Trajectory, TrajectoryInfo


@dataclass(frozen=True, slots=True)
class Task:
    """What an agent is to do."""

    id: str
    prompt: str
    fields: Mapping[str, object] = field(default_factory=dict)
    """All that is known of it, for the reward: its answer, say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What an agent is started with."""

    task: Task
    url: str
    """Base URL of OpenAI's clients, with `/v1`; Anthropic's have the same without."""
    key: str
    model: str
    trajectory_id: str
    folder: Path
    """Its working directory, empty or a copy of what was given."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables by which clients find their model."""
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_BASE": self.url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.key,
            "STEPWELL_MODEL": self.model,
            "STEPWELL_TASK": self.task.id,
            "STEPWELL_TRAJECTORY": self.trajectory_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What an agent leaves behind, for its reward."""

    task: Task
    trajectory: Trajectory
    """Its steps, as the gateway recorded them; of a fork, those that it took itself."""
    past: tuple[Step, ...] = ()
    """Of a fork: its origin's steps, which it was answered with before."""
    folder: Path
    output: str = ""
    """The end of what it printed, or what its function or service gave."""
    exit_code: int = 0
    result: object = None
    """Of a function or a service: what it gave."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """All that the agent lived through: to judge by these makes no difference between forks and others."""
        return (*self.past, *self.trajectory.steps)


Reward = Callable[[Done], Mapping[str, float]]
"""Reward parts by name. Raises EnvironmentFailed if there is nothing to judge by."""


class Runner(Protocol):
    """Starts an agent and waits for it."""

    @property
    def name(self) -> str:
        """Whom the record names."""
        ...

    async def run(self, call: Call) -> tuple[int, str, object]:
        """Exit code, the end of the output, and what it gave. Cancelled, it stops the agent.

        Raises:
            EnvironmentFailed: it could not be started.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where agents find their model, and where what they do is recorded."""

    gateway_url: str
    """Without `/v1`."""
    model: str
    log: Log
    read: Callable[[str], Trajectory]
    """A trajectory as it is recorded; may block. Raises NotFound."""
    key: str = "unused"


@runtime_checkable
class OwnAgent(Protocol):
    """A task set whose tasks are done by an agent of its own, not by the built-in one in an environment."""

    def player(self, place: Place) -> Player:
        """Who plays them."""
        ...


def player_of(tasks: TaskSet, agent: Agent, place: Place, config: RolloutConfig) -> Player:
    """Who plays the tasks of a task set: its own agent, or `agent` in its environments."""
    if isinstance(tasks, OwnAgent):
        return tasks.player(place)
    return EnvironmentPlayer(tasks, agent, place.log, config)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackBox:
    """Plays trajectories by an agent of its own."""

    runner: Runner
    tasks: Mapping[str, Task]
    reward: Reward
    place: Place
    timeout: float | None = None
    """Seconds after which an agent is stopped: its trajectory is truncated, and rewarded for what it left."""
    files: Path | None = None
    """Copied into each working directory."""

    @property
    def agent(self) -> str:
        """See `Player`."""
        return self.runner.name

    async def play(self, info: TrajectoryInfo, start: Start) -> Ending:
        """See `Player`."""
        await record(self.place.log, info)
        gate = _Once(start.gate)
        try:
            with tempfile.TemporaryDirectory(prefix="stepwell-agent-", ignore_cleanup_errors=True) as name:
                ending = await self._played(info, start, gate, Path(name))
        except asyncio.CancelledError:
            await record(self.place.log, Annotation.end(info.id, "failed", "cancelled"))
            raise
        except Exception as error:  # a rollout that breaks is data, whatever broke it
            why = f"{type(error).__name__}: {error}"
            retry = isinstance(error, (EngineError, EnvironmentFailed, PoolError))
            ending = Ending(
                trajectory_id=info.id,
                task_id=info.task_id,
                how="failed",
                why=why,
                retry=retry,
                refused=isinstance(error, ForkRefused),
            )
        finally:
            gate.leave()
        await record(self.place.log, Annotation.end(info.id, ending.how, ending.why))
        return ending

    async def _played(self, info: TrajectoryInfo, start: Start, gate: "_Once", folder: Path) -> Ending:
        task = self._task(info.task_id)
        if self.files is not None:
            await asyncio.to_thread(shutil.copytree, self.files, folder, dirs_exist_ok=True)
        call = Call(
            task=task,
            url=f"{self.place.gateway_url}/t/{info.id}/v1",
            key=self.place.key,
            model=self.place.model,
            trajectory_id=info.id,
            folder=folder,
        )
        left = await self._run(call)
        trajectory = await asyncio.to_thread(self.place.read, info.id)
        own = [step for step in trajectory.steps if not step.side]
        _check(trajectory, own, start.fork, left)
        ending = _ending(info, own, left)
        if not await gate.passes(answer_from_json(own[0].response) or Message(role="assistant")):
            return replace(ending, how="truncated", why=ALIKE)
        done = Done(
            task=task,
            trajectory=trajectory,
            past=await self._past(start.fork),
            folder=folder,
            output=left.output,
            exit_code=left.code,
            result=left.result,
        )
        parts = await asyncio.to_thread(self.reward, done)
        await record(
            self.place.log, *(Annotation.reward("trajectory", info.id, value, name) for name, value in parts.items())
        )
        if start.forks is not None:
            # Where an answer was cut off nothing was done; the call that came in its place has the same state.
            start.forks[:] = [Fork(step.index, origin_id=info.id) for step in own if step.finish_reason != "abort"]
        return replace(ending, reward=sum(parts.values()))

    async def _run(self, call: Call) -> "_Left":
        try:
            async with asyncio.timeout(self.timeout) as limit:
                return _Left(*await self.runner.run(call))
        except Exception as error:  # of a function, anything; what the gateway knows of it may say more
            if limit.expired():
                return _Left(stopped=f"the agent was stopped after {self.timeout} s")
            return _Left(raised=error)

    async def _past(self, fork: Fork | None) -> tuple[Step, ...]:
        if fork is None or not fork.origin_id:
            return ()
        origin = await asyncio.to_thread(self.place.read, fork.origin_id)
        return tuple(step for step in origin.steps if step.index < fork.step)

    def _task(self, task_id: str) -> Task:
        if task_id not in self.tasks:
            raise NotFound(f"there is no task {task_id!r}")
        return self.tasks[task_id]


@dataclass(frozen=True, slots=True)
class _Left:
    """What an agent's run came to."""

    code: int = 0
    output: str = ""
    result: object = None
    stopped: str = ""
    """Why it did not end by itself."""
    raised: Exception | None = None

    @property
    def told(self) -> str:
        return self.stopped or f"it ended with {self.code}: {self.output[-500:]}"


class _Once:
    """The gate of a start, if it has one, for the one action that it is asked about."""

    def __init__(self, gate: Gate | None) -> None:
        self._gate = gate

    async def passes(self, action: Message) -> bool:
        gate, self._gate = self._gate, None
        return gate is None or await gate.passes(action)

    def leave(self) -> None:
        if self._gate is not None:
            self._gate.leave()


def _check(trajectory: Trajectory, own: Sequence[Step], fork: Fork | None, left: _Left) -> None:
    """Whether the agent did what can be judged. Raises what its trajectory has failed by."""
    if trajectory.status == "failed":  # the gateway has seen that the agent is not in its past
        raise ForkRefused(trajectory.why)
    if left.raised is not None:
        told = f"the agent raised {type(left.raised).__name__}: {left.raised}"
        raise left.raised if isinstance(left.raised, StepwellError) else EnvironmentFailed(told)
    if own:
        return
    if fork is None:
        raise InvalidRequest(f"the agent made no call that the gateway recorded; {left.told}")
    told = f"the agent did not get to step {fork.step}, which it was to take anew; {left.told}"
    raise EnvironmentFailed(told) if left.code or left.stopped else ForkRefused(told)


def _ending(info: TrajectoryInfo, own: Sequence[Step], left: _Left) -> Ending:
    """How it went, less its reward."""
    return Ending(
        trajectory_id=info.id,
        task_id=info.task_id,
        how="truncated" if left.stopped else "terminated",
        why=left.stopped or (f"exit code {left.code}" if left.code else ""),
        turns=len(own),
        prompt_tokens=sum(len(step.prompt_ids) for step in own),
        response_tokens=sum(len(step.response_ids) for step in own),
    )


def exit_code_reward(done: Done) -> Mapping[str, float]:
    """1 for an exit code of 0, else 0."""
    return {"exit_code": float(done.exit_code == 0)}


def file_reward(name: str) -> Reward:
    """The number in a file of the agent's working directory."""

    def reward(done: Done) -> Mapping[str, float]:
        path = done.folder / name
        try:
            return {"file": float(path.read_text(encoding="utf-8").strip())}
        except (OSError, ValueError) as error:
            raise EnvironmentFailed(f"{name} holds no reward: {error}") from error

    return reward


def named_parts(value: object) -> Mapping[str, float]:
    """What a person's function gave, as reward parts: a number, or numbers by name."""
    if isinstance(value, Mapping):
        return {str(name): float(part) for name, part in value.items()}
    if isinstance(value, (int, float)):
        return {"reward": float(value)}
    raise EnvironmentFailed(f"a reward is a number, or numbers by name, but got {type(value).__name__}")
