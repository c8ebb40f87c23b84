"""Agents that nobody changes: a command, a Python function or a service is given a base URL and a task, and left alone.

Whatever SDK such an agent uses, its calls arrive at the gateway below the path of its trajectory, and are recorded
there. When it is done it is rewarded by what it leaves behind: its exit code, a file, or a function of all of that and
of the transcript. A fork of it needs nothing either: the gateway answers its first calls from the record (see
`stepwell.gateway.origin`).
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from stepwell.errors import EnvironmentFailed, InvalidRequest, NotFound
from stepwell.rollout.agent import Agent
from stepwell.rollout.env import TaskSet
from stepwell.rollout.run import Ending, EnvironmentPlayer, Fork, Log, Player, RolloutConfig, Start, record
from stepwell.types import Annotation, End, Trajectory, TrajectoryInfo

_KEPT: Final = 65_536
"""Bytes of an agent's output that are kept, from its end."""
_SYSTEM: Final = (
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/opt",
    "/etc/ssl",
    "/etc/resolv.conf",
    "/etc/hosts",
    sys.prefix,
    sys.base_prefix,
)
"""What an agent in a cage may read: programs, certificates, names of hosts, and this Python."""
_GRACE: Final = 2.0
"""Seconds between asking an agent to stop and killing it."""


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
    """Its steps, as the gateway recorded them."""
    folder: Path
    output: str = ""
    """The end of what it printed, or what its function or service gave."""
    exit_code: int = 0
    result: object = None
    """Of a function or a service: what it gave."""


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


@dataclass(frozen=True, slots=True)
class CommandRunner:
    """A program: `{task}`, `{model}`, `{url}`, `{key}` and `{folder}` in its command are replaced, quoted for a shell.

    The task is on its standard input too. It runs in a process group of its own, all of which is killed in the end.
    """

    command: str
    bubblewrap: bool = False
    """Let it write to its working directory only, and see neither home folders nor other processes."""
    readable: tuple[Path, ...] = ()
    """What it may read there beside the system's programs."""

    @property
    def name(self) -> str:
        """The program."""
        return Path(shlex.split(self.command)[0]).name

    async def run(self, call: Call) -> tuple[int, str, object]:
        """See `Runner`."""
        told = {"task": call.task.prompt, "model": call.model, "url": call.url, "key": call.key}
        line = self.command
        for name, value in (told | {"folder": str(call.folder)}).items():
            line = line.replace("{" + name + "}", shlex.quote(value))
        arguments = [*(_caged(call.folder, self.readable) if self.bubblewrap else ()), "/bin/sh", "-c", line]
        environment = {**os.environ, **call.variables}
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                cwd=call.folder,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentFailed(f"{arguments[0]} could not be started: {error}") from error
        try:
            output = await _talk(process, call.task.prompt)
            return await process.wait(), output, None
        finally:
            await _stopped(process)


async def _talk(process: asyncio.subprocess.Process, told: str) -> str:
    """Give a process its input and read all that it prints, of which the end is kept."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read
        process.stdin.write(told.encode("utf-8", "surrogatepass"))
        await process.stdin.drain()
    process.stdin.close()
    kept = bytearray()
    while chunk := await process.stdout.read(_KEPT):
        kept += chunk
        del kept[: len(kept) - _KEPT]
    return kept.decode("utf-8", "replace")


async def _stopped(process: asyncio.subprocess.Process) -> None:
    """Its whole group: also what it left running in the background."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await process.wait()


def _caged(folder: Path, readable: Sequence[Path]) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise EnvironmentFailed(
            "bubblewrap is not installed (Debian: apt-get install bubblewrap); or set sandbox: none"
        )
    seen = [
        word for path in (*_SYSTEM, *map(str, readable)) if Path(path).exists() for word in ("--ro-bind", path, path)
    ]
    return [
        *(program, "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--new-session"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),  # before what may be inside of them
        *(*seen, "--bind", str(folder), str(folder)),
        *("--chdir", str(folder), "--setenv", "HOME", str(folder), "--"),
    ]


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
        ending = Ending(trajectory_id=info.id, task_id=info.task_id, how="failed")
        try:
            with tempfile.TemporaryDirectory(prefix="stepwell-agent-", ignore_cleanup_errors=True) as name:
                ending = await self._played(info, start, Path(name))
        except asyncio.CancelledError:
            await record(self.place.log, Annotation.end(info.id, "failed", "cancelled"))
            raise
        except Exception as error:  # a rollout that breaks is data, whatever broke it
            why = f"{type(error).__name__}: {error}"
            ending = Ending(trajectory_id=info.id, task_id=info.task_id, how="failed", why=why)
        await record(self.place.log, Annotation.end(info.id, ending.how, ending.why))
        return ending

    async def _played(self, info: TrajectoryInfo, start: Start, folder: Path) -> Ending:
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
        how: End = "terminated"
        code, output, result, why = 0, "", None, ""
        try:
            async with asyncio.timeout(self.timeout):
                code, output, result = await self.runner.run(call)
                why = f"exit code {code}" if code else ""
        except TimeoutError:
            how, why = "truncated", f"the agent was stopped after {self.timeout} s"
        trajectory = await self._recorded(info, why or f"it ended with {code}: {output[-500:]}")
        done = Done(task=task, trajectory=trajectory, folder=folder, output=output, exit_code=code, result=result)
        parts = await asyncio.to_thread(self.reward, done)
        await record(
            self.place.log, *(Annotation.reward("trajectory", info.id, value, name) for name, value in parts.items())
        )
        own = [step for step in trajectory.steps if not step.side]
        if start.forks is not None:
            start.forks[:] = [Fork(step.index) for step in own]
        return Ending(
            trajectory_id=info.id,
            task_id=info.task_id,
            how=how,
            why=why,
            reward=sum(parts.values()),
            turns=len(own),
            prompt_tokens=sum(len(step.prompt_ids) for step in own),
            response_tokens=sum(len(step.response_ids) for step in own),
        )

    def _task(self, task_id: str) -> Task:
        if task_id not in self.tasks:
            raise NotFound(f"there is no task {task_id!r}")
        return self.tasks[task_id]

    async def _recorded(self, info: TrajectoryInfo, why: str) -> Trajectory:
        trajectory = await asyncio.to_thread(self.place.read, info.id)
        if not any(not step.side for step in trajectory.steps):
            raise InvalidRequest(f"the agent made no call that the gateway recorded; {why}")
        return trajectory


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
