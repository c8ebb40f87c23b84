"""The tools of any MCP server as an environment: somebody names a server and a file of tasks, and has a task set.

A server is a command, which each episode starts anew, or a URL, to which each episode has a session of its own. What
its tools do may last, so that an episode cannot be forked unless the settings say that they only read; then it is
forked by playing it again. The protocol is spoken by the package `mcp` (MIT).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from stepwell.environments.function_tasks import Task, ids_of, named_tasks, type_of
from stepwell.environments.mcp_session import Server, Session
from stepwell.environments.rewards import Played, Reward, Used, named_reward
from stepwell.environments.tool_arguments import Misused, checked_arguments
from stepwell.errors import InvalidRecord, InvalidRequest, NotFound
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Environment, Outcome, TaskSet, TaskSetConfig


class MCPConfig(TaskSetConfig):
    """Settings of an environment of MCP tools: a `command` or a `url`, and `tasks`."""

    command: tuple[str, ...] = ()
    """Program and arguments of a server that speaks over stdin and stdout; each episode starts one."""
    url: str | None = Field(default=None, pattern="^https?://")
    """A server of streamable HTTP, such as `http://127.0.0.1:8000/mcp`."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the command, besides the few that it inherits."""
    folder: Path | None = None
    """Working directory of the command; None for the present one."""
    tasks: str
    """A file of rows (`.jsonl` or `.json`), or `path/file.py:name` of a list. A row has `prompt`, and if one likes
    `id`, `answer`, `split` (`train` or `test`; else a fifth is kept for tests, by a hash of the prompt), `type`."""
    reward: str | None = None
    """`path/file.py:name` of a function of a `Played`: a number, or reward parts by name. None checks that the agent's
    last message is the row's `answer`."""
    system: str = ""
    """System message; none if empty."""
    only: tuple[str, ...] = ()
    """Names of the tools that are offered; all if empty."""
    max_turns: int = Field(default=8, ge=1)
    """Assistant messages after which the episode is truncated, and rewarded."""
    max_characters: int = Field(default=20_000, ge=1)
    """A tool's answer is cut to these."""
    timeout: float = Field(default=30.0, gt=0)
    """Seconds for the server's beginning, and for each call."""
    read_only: bool = False
    """The tools change nothing, and say the same to the same arguments."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("name a server by either `command` or `url`")
        if self.url is not None and (self.variables or self.folder):
            raise ValueError("`variables` and `folder` are for a `command`")
        return self

    def build(self) -> TaskSet:
        """The task set with these settings; see `MCPTools` for what it may raise."""
        return MCPTools(self)


class MCPTools:
    """The task set: rows, and the tools of a server."""

    name: Final = "mcp"

    def __init__(self, config: MCPConfig) -> None:
        """Read the tasks; the server is asked for its tools when an episode begins.

        Raises:
            ConfigError: a name leads nowhere.
            InvalidRecord: a row is broken, or has no `answer` to check; the message has its line or id.
            MissingDependency: the file of rows cannot be read.
        """
        self._config = config
        self._reward = named_reward(config.reward)
        self._tasks = named_tasks(config.tasks)
        for key, task in self._tasks.items():
            if config.reward is None and not isinstance(task.row.get("answer"), str | int | float | list):
                raise InvalidRecord(f"{config.tasks}, {key}: `answer` is missing; give it, or name a `reward` function")

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
        kind = ReadOnlyMCPEnvironment if self._config.read_only else MCPEnvironment
        return kind(self._config, self._tasks, self._reward)


@dataclass(frozen=True, slots=True)
class _State:
    """An episode under way."""

    task: Task
    turns: int = 0
    calls: tuple[Used, ...] = ()


class ReadOnlyMCPEnvironment:
    """One episode with tools that change nothing; it is forked by playing it again."""

    def __init__(self, config: MCPConfig, tasks: Mapping[str, Task], reward: Reward) -> None:
        """Made by `MCPTools.make`."""
        self._config = config
        self._tasks = tasks
        self._reward = reward
        self._session: Session | None = None
        self._tools: Mapping[str, Tool] = {}
        self._state: _State | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Those of the server; none before `reset`."""
        return tuple(self._tools.values())

    async def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Connect, and show the prompt of `task_id`.

        Raises:
            NotFound: there is no such task.
            MissingDependency: the package `mcp` is not installed.
            EnvironmentFailed: the server cannot be used, or lacks a tool that the settings name.
        """
        task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(f"there is no task {task_id!r} in {self._config.tasks}")
        await self.close()
        self._session = Session(self._server())
        await self._session.open()
        self._tools = self._offered(self._session.tools)
        self._state = _State(task)
        system = (Message(role="system", content=self._config.system),) if self._config.system else ()
        return (*system, Message(role="user", content=task.prompt))

    async def step(self, action: Message) -> Outcome:
        """Call the tools that the message calls, in order. Without a call, the message is the answer.

        Raises:
            InvalidRequest: no episode is running.
            EnvironmentFailed: the server, or the reward function, failed.
        """
        if self._state is None:
            raise InvalidRequest("no episode is running: call reset first")
        if not action.tool_calls:
            return Outcome(terminated=True, reward_parts=await self._ended(action.content))
        results, invalid, used = [], 0, list(self._state.calls)
        for call in action.tool_calls:
            try:
                made = await self._use(call)
                content = made.result
                used.append(made)
            except Misused as mistake:
                content, invalid = f"Error: {mistake}", invalid + 1
            results.append(Message(role="tool", content=content, tool_call_id=call.id))
        self._state = replace(self._state, turns=self._state.turns + 1, calls=tuple(used))
        if self._state.turns >= self._config.max_turns:
            return Outcome(truncated=True, reward_parts=await self._ended("", truncated=True), invalid_calls=invalid)
        return Outcome(messages=tuple(results), invalid_calls=invalid)

    async def close(self) -> None:
        """See `Closing`."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _use(self, call: ToolCall) -> Used:
        """A call, and what the server said. Raises Misused."""
        assert self._session is not None
        arguments = checked_arguments(call, self._tools)
        said = await self._session.call(call.name, arguments)
        most = self._config.max_characters
        shown = said if len(said) <= most else f"{said[:most]}\n[{len(said) - most} more characters]"
        return Used(call.name, arguments, shown)

    async def _ended(self, answer: str, *, truncated: bool = False) -> tuple[tuple[str, float], ...]:
        state, self._state = self._state, None
        assert state is not None
        return await self._reward.of(Played(dict(state.task.row), answer, state.calls, truncated))

    def _server(self) -> Server:
        config = self._config
        return Server(config.command, config.url, config.variables, config.folder, config.timeout)

    def _offered(self, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
        missing = [name for name in self._config.only if name not in tools]
        if missing:
            raise NotFound(f"the server has no tool {missing[0]!r} (`only`); it has {', '.join(tools) or 'none'}")
        return {name: tools[name] for name in self._config.only} if self._config.only else tools


class MCPEnvironment(ReadOnlyMCPEnvironment):
    """One episode with tools whose effects may last; it cannot be forked."""

    no_fork: Final = "what the tools of an MCP server do may last; set `read_only: true` if they only read"
