"""Python functions as an environment: somebody names a file with tools, tasks and a reward, and has a task set.

Tools are functions with type hints and docstrings, from which their JSON schemas are made (`function_tools`), or the
methods of a class, of which each episode has an object of its own. A call with wrong arguments, and an exception of a
tool, are answered with a short error; a reward function that fails is the environment's fault.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from pydantic import Field

from stepwell.environments.function_tasks import Task, ids_of, named_tasks, type_of
from stepwell.environments.function_tools import FunctionTool, named_tools
from stepwell.environments.rewards import FOREIGN, Played, Reward, Used, fallible, named_reward
from stepwell.environments.tool_arguments import Misused
from stepwell.errors import InvalidRequest, NotFound, StepwellError
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Environment, Outcome, TaskSet, TaskSetConfig
from stepwell.rollout.episode import called


class Finished(Exception):  # not an error
    """Raised by a tool: the episode ends here, with this answer."""

    def __init__(self, answer: str = "") -> None:
        """`answer` is what the reward function sees as the answer."""
        super().__init__(answer)
        self.answer = answer


class FunctionsConfig(TaskSetConfig):
    """Settings of an environment of Python functions. Names of objects are `path/file.py:name` or `module:name`."""

    tools: str
    """A list of functions, or a class `World(task, seed)` whose public methods are the tools."""
    reward: str
    """Function of a `Played`: a number, or a mapping of reward parts by name. It may be `async`."""
    tasks: str
    """A file of rows (`.jsonl` or `.json`), or the name of a list of rows. A row has `prompt`, and if one likes `id`,
    `split` (`train` or `test`; else a fifth is kept for tests, by a hash of the prompt), `type`, and anything else."""
    system: str = ""
    """System message; none if empty."""
    max_turns: int = Field(default=8, ge=1)
    """Assistant messages after which the episode is truncated, and rewarded."""
    fork: Literal["replay", "copy", "never"] = "replay"
    """How an episode is continued twice. `replay`: it is played again, and must bring the same. `copy`: the object of
    the class is copied deeply; functions must then keep nothing. `never`: what the tools do lasts."""

    def build(self) -> TaskSet:
        """The task set with these settings; see `Functions` for what it may raise."""
        return Functions(self)


class Functions:
    """The task set: rows, tools, a reward."""

    name: Final = "functions"

    def __init__(self, config: FunctionsConfig) -> None:
        """Import what the settings name.

        Raises:
            ConfigError: a name leads nowhere, or a tool has no hints or description.
            InvalidRecord: a row is broken; the message has its line.
            MissingDependency: the file of rows cannot be read.
        """
        self._config = config
        self._reward = named_reward(config.reward)
        self._world, self._tools = named_tools(config.tools)
        self._tasks = named_tasks(config.tasks)

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of the rows of `train` or `test`, in their order.

        Raises:
            InvalidRequest: there is no such split.
        """
        return ids_of(self._tasks, split)

    def task_type(self, task_id: str) -> str:
        """The field `type` of its row."""
        return type_of(self._tasks, task_id)

    def make(self) -> Environment:
        """A fresh episode."""
        kind = _KINDS[self._config.fork]
        return kind(self._config, self._tasks, self._world, self._tools, self._reward)


@dataclass(frozen=True, slots=True)
class _State:
    """An episode under way."""

    task: Task
    world: Any
    turns: int = 0
    calls: tuple[Used, ...] = field(default=())


class FunctionsEnvironment:
    """One episode; it is forked by playing it again."""

    def __init__(
        self,
        config: FunctionsConfig,
        tasks: Mapping[str, Task],
        world: type | None,
        tools: Mapping[str, FunctionTool],
        reward: Reward,
    ) -> None:
        """Made by `Functions.make`."""
        self._config = config
        self._tasks = tasks
        self._world = world
        self._tools = tools
        self._reward = reward
        self._state: _State | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The functions, with schemas."""
        return tuple(tool.tool for tool in self._tools.values())

    async def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        """Show the prompt of `task_id`.

        Raises:
            NotFound: there is no such task.
            EnvironmentFailed: the class cannot be made an object of.
        """
        task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(f"there is no task {task_id!r} in {self._config.tasks}")
        world = None
        if self._world is not None:
            world = await fallible(f"{self._config.tools} cannot begin", self._world, copy.deepcopy(task.row), seed)
        self._state = _State(task, world)
        system = (Message(role="system", content=self._config.system),) if self._config.system else ()
        return (*system, Message(role="user", content=task.prompt))

    async def step(self, action: Message) -> Outcome:
        """Call the tools that the message calls, in order. Without a call, the message is the answer.

        Raises:
            InvalidRequest: no episode is running.
            EnvironmentFailed: the reward function failed.
        """
        if self._state is None:
            raise InvalidRequest("no episode is running: call reset first")
        if not action.tool_calls:
            return await self._ended(action.content)
        self._state = replace(self._state, turns=self._state.turns + 1)
        results, invalid = [], 0
        for call in action.tool_calls:
            try:
                content = await self._use(call)
            except Misused as mistake:
                content, invalid = f"Error: {mistake}", invalid + 1
            except Finished as end:
                return replace(await self._ended(end.answer), invalid_calls=invalid)
            results.append(Message(role="tool", content=content, tool_call_id=call.id))
        if self._state.turns >= self._config.max_turns:
            return replace(await self._ended("", truncated=True), invalid_calls=invalid)
        return Outcome(messages=tuple(results), invalid_calls=invalid)

    async def _use(self, call: ToolCall) -> str:
        """What a tool says. Raises Misused, Finished, and what of our own errors a tool raises on purpose."""
        assert self._state is not None
        tool = self._tools.get(call.name)
        if tool is None:
            raise Misused(f"there is no tool {call.name[:40]!r}; use {', '.join(self._tools)}.")
        arguments = tool.arguments(call.arguments)
        function = tool.function if self._world is None else getattr(self._state.world, call.name)
        try:
            result = tool.shown(await called(function, **arguments))
        except (Finished, StepwellError):
            raise
        except FOREIGN as error:
            result = f"Error: {type(error).__name__}: {error}".removesuffix(": ")
        self._state = replace(self._state, calls=(*self._state.calls, Used(call.name, arguments, result)))
        return result

    async def _ended(self, answer: str, *, truncated: bool = False) -> Outcome:
        state, self._state = self._state, None
        assert state is not None
        played = Played(copy.deepcopy(state.task.row), answer, state.calls, truncated, state.world)
        parts = await self._reward.of(played)
        return Outcome(terminated=not truncated, truncated=truncated, reward_parts=parts)


class CopiedEnvironment(FunctionsEnvironment):
    """One episode; it is forked by copying the object of the class."""

    def snapshot(self) -> object:
        """See `Forkable`."""
        return None if self._state is None else replace(self._state, world=copy.deepcopy(self._state.world))

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        self._state = None if snapshot is None else replace(snapshot, world=copy.deepcopy(snapshot.world))


class LastingEnvironment(FunctionsEnvironment):
    """One episode; it cannot be forked."""

    no_fork: Final = "its settings say `fork: never`, since what its tools do lasts"


_KINDS: Final[Mapping[str, type[FunctionsEnvironment]]] = {
    "replay": FunctionsEnvironment,
    "copy": CopiedEnvironment,
    "never": LastingEnvironment,
}
