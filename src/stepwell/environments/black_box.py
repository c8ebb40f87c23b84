"""Tasks for an agent of your own: a command, a Python function, or a service that is left as it is.

    environment: {use: black_box, command: "python my_agent.py {task}", tasks: tasks.jsonl, reward: "judge.py:reward"}

Each line of the tasks is a JSON object with a `prompt`, and optionally an `id`, a `split` (`train` unless it says
`test`) and anything else that the reward wants to know.
"""

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import httpx
from pydantic import Field, model_validator

from stepwell.config import imported
from stepwell.errors import ConfigError, EnvironmentFailed, InvalidRecord, InvalidRequest
from stepwell.rollout.blackbox import (
    BlackBox,
    Call,
    Done,
    Place,
    Reward,
    Runner,
    Task,
    exit_code_reward,
    file_reward,
    named_parts,
)
from stepwell.rollout.command import CommandRunner
from stepwell.rollout.env import Environment, TaskSet, TaskSetConfig

_SPLITS: Final = ("train", "test")


class BlackBoxConfig(TaskSetConfig):
    """Settings of tasks for an agent of your own."""

    command: str | None = None
    """A program; `{task}`, `{model}`, `{url}`, `{key}`, `{folder}` are replaced. The task is its standard input too."""
    function: str | None = None
    """A Python function of a `stepwell.rollout.blackbox.Call`, plain or async, as file.py:name or module:name."""
    service: str | None = None
    """URL that takes a POST of {task, id, base_url, api_key, model, trajectory} and answers when the task is done."""
    tasks: Path
    """JSON Lines file."""
    reward: str = "exit_code"
    """`exit_code` (1 for 0), `file:NAME` (the number in that file of the working directory), `result` (what the
    function gave, or the service in `reward`), or a function of a `stepwell.rollout.blackbox.Done` as file.py:name."""
    sandbox: Literal["none", "bubblewrap"] = "none"
    """Of a command: whether it may write anywhere but to its working directory, and see home folders."""
    readable: tuple[Path, ...] = ()
    """Files and folders that a command in a sandbox may read, beside the system's programs and this Python."""
    timeout: float | None = Field(default=600.0, gt=0)
    """Seconds after which an agent is stopped; its trajectory is truncated, and rewarded for what it left."""
    files: Path | None = None
    """Folder that is copied into each working directory."""

    @model_validator(mode="after")
    def _one_agent(self) -> "BlackBoxConfig":
        named = [name for name in ("command", "function", "service") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(
                f"name the agent by one of command, function, service; got {' and '.join(named) or 'none'}"
            )
        if self.sandbox != "none" and self.command is None:
            raise ValueError("only a command runs in a sandbox")
        return self

    def build(self) -> TaskSet:
        """The task set with these settings.

        Raises:
            InvalidRecord: a line of the tasks is broken.
            ConfigError: the tasks cannot be read, or a function is not there.
        """
        return BlackBoxTasks(self)


class BlackBoxTasks:
    """Tasks from a file, and who does them."""

    name: Final = "black_box"

    def __init__(self, config: BlackBoxConfig) -> None:
        """Read the tasks. Raises as `BlackBoxConfig.build`."""
        self._config = config
        self._tasks = {task.id: task for task in _read(config.tasks)}
        self._runner = _runner(config)
        self._reward = _reward(config.reward)

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of the tasks of a split, in the order of the file.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in _SPLITS:
            raise InvalidRequest(f"no split {split!r}; use {' or '.join(_SPLITS)}")
        return [task.id for task in self._tasks.values() if task.fields.get("split", "train") == split]

    def make(self) -> Environment:
        """There is none: the agent has its own surroundings. Raises InvalidRequest."""
        raise InvalidRequest("tasks of black_box have no environment for the built-in agent: their own agent does them")

    def player(self, place: Place) -> BlackBox:
        """See `OwnAgent`."""
        return BlackBox(
            runner=self._runner,
            tasks=self._tasks,
            reward=self._reward,
            place=place,
            timeout=self._config.timeout,
            files=self._config.files,
        )


@dataclass(frozen=True, slots=True)
class _FunctionRunner:
    """An agent that is a Python function. It runs in a thread, which nothing can stop: give it timeouts of its own."""

    function: Callable[[Call], Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    async def run(self, call: Call) -> tuple[int, str, object]:
        if inspect.iscoroutinefunction(self.function):
            return 0, "", await self.function(call)
        return 0, "", await asyncio.to_thread(self.function, call)


@dataclass(frozen=True, slots=True)
class _ServiceRunner:
    """An agent behind HTTP."""

    url: str

    @property
    def name(self) -> str:
        return httpx.URL(self.url).host

    async def run(self, call: Call) -> tuple[int, str, object]:
        asked = {"task": call.task.prompt, "id": call.task.id, "base_url": call.url, "api_key": call.key}
        asked |= {"model": call.model, "trajectory": call.trajectory_id}
        try:
            async with httpx.AsyncClient(timeout=None) as client:  # the player stops what takes too long
                answer = await client.post(self.url, json=asked)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise EnvironmentFailed(f"the agent at {self.url} failed: {error}") from error
        try:
            told = answer.json()
        except ValueError:
            told = None
        return 0, answer.text[-65_536:], told.get("reward") if isinstance(told, dict) else None


def _runner(config: BlackBoxConfig) -> Runner:
    if config.command is not None:
        return CommandRunner(config.command, config.sandbox == "bubblewrap", config.readable)
    if config.function is not None:
        return _FunctionRunner(imported(config.function))
    assert config.service is not None
    return _ServiceRunner(config.service)


def _reward(name: str) -> Reward:
    if name == "exit_code":
        return exit_code_reward
    if name == "result":
        return lambda done: named_parts(done.result)
    if name.startswith("file:"):
        return file_reward(name.removeprefix("file:"))
    return functools.partial(_judged, imported(name))


def _judged(function: Callable[[Done], object], done: Done) -> Mapping[str, float]:
    return named_parts(function(done))


def _read(path: Path) -> list[Task]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the tasks in {path}: {error}") from error
    tasks = [_task(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    ids = [task.id for task in tasks]
    again = next((name for name in ids if ids.count(name) > 1), None)
    if again is not None:
        raise InvalidRecord(f"{path} has two tasks with the id {again!r}")
    return tasks


def _task(path: Path, number: int, line: str) -> Task:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise InvalidRecord(f"{path}, line {number} is not JSON: {error}") from error
    prompt = fields.get("prompt") if isinstance(fields, dict) else None
    if not isinstance(prompt, str):
        raise InvalidRecord(f"{path}, line {number} has no text `prompt`")
    if fields.get("split", "train") not in _SPLITS:
        raise InvalidRecord(f"{path}, line {number} has the split {fields['split']!r}; use {' or '.join(_SPLITS)}")
    return Task(str(fields.get("id", f"task-{number}")), prompt, fields)
