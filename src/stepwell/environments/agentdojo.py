"""AgentDojo: an assistant with a mailbox, a bank account, a workspace chat or a travel agency does what its user asks.

The four suites and their checkers are those of the package `agentdojo` (MIT), unchanged, of its benchmark v1.2.2;
nothing of it is part of Stepwell. Nobody attacks: the texts that an attacker could write are the harmless ones. Left
out are the five tasks of the bank that count as solved when nothing is done.
"""

import copy
import datetime
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import yaml
from pydantic import Field, ValidationError

from stepwell.environments.rows import held_out
from stepwell.environments.tool_arguments import Misused, json_arguments, untitled
from stepwell.errors import EnvironmentFailed, InvalidRequest, MissingDependency, NotFound
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Environment, Outcome, TaskSet, TaskSetConfig

Suite = Literal["workspace", "travel", "banking", "slack"]

_VERSION: Final = "v1.2.2"
_IDLE: Final = frozenset(f"banking/user_task_{number}" for number in (5, 6, 8, 9, 10))
"""Solved by doing nothing."""
_TEST_SHARE: Final = 0.2
_TODAY: Final = datetime.datetime(2024, 5, 15, 12, 0, 0)
"""What a clock says in these worlds; their own tools call this the current day."""
_CLOCKS: Final = ("email_client", "cloud_drive_client")
"""Modules whose tools look at the clock."""
_SYSTEM: Final = (
    "You are an assistant who does what the user asks by calling the tools. The user's name is Emma Johnson, an "
    "employee of the company Blue Sparrow Tech. Do not guess values for arguments: look them up with the tools, the "
    "current year too. When you are done, answer without calling a tool."
)


class AgentDojoConfig(TaskSetConfig):
    """Settings of AgentDojo."""

    suites: tuple[Suite, ...] = Field(default=("workspace", "travel", "banking", "slack"), min_length=1)
    """Worlds whose tasks are played: 40, 20, 11 and 21."""
    max_turns: int = Field(default=15, ge=1)
    """Assistant messages after which the episode is truncated; it is checked all the same."""

    def build(self) -> TaskSet:
        """The task set with these settings; see `AgentDojo` for what it may raise."""
        return AgentDojo(self)


@dataclass(frozen=True, slots=True)
class _World:
    """A suite: what all its episodes share, and none changes."""

    suite: Any
    start: Any
    """The state of the world before anything happens."""
    runtime: Any
    tools: Mapping[str, Tool]


class AgentDojo:
    """The task set: `SUITE/user_task_N`, a fifth of them held out by a hash of the id."""

    name: Final = "agentdojo"

    def __init__(self, config: AgentDojoConfig) -> None:
        """Load the suites (3 s, most of it for imports).

        Raises:
            MissingDependency: the package is not installed.
        """
        self._config = config
        suites = _suites()
        self._worlds: dict[str, _World] = {name: _world(suites[name]) for name in config.suites}
        ids = [f"{name}/{task}" for name, world in self._worlds.items() for task in world.suite.user_tasks]
        self._ids = [task_id for task_id in ids if task_id not in _IDLE]

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of `train` or `test`, by suite and number.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in ("train", "test"):
            raise InvalidRequest(f"no split {split!r}; use train or test")
        return [task_id for task_id in self._ids if held_out(task_id, _TEST_SHARE) == (split == "test")]

    def task_type(self, task_id: str) -> str:
        """The suite."""
        return task_id.partition("/")[0]

    def make(self) -> Environment:
        """A fresh episode."""
        return AgentDojoEnvironment(self._worlds, frozenset(self._ids), self._config.max_turns)


@dataclass(frozen=True, slots=True)
class _State:
    """An episode under way."""

    world: _World
    task: Any
    before: Any
    """The world as the task begins; never changed."""
    now: Any
    trace: tuple[Any, ...] = ()
    """The calls so far, as AgentDojo's checkers read them."""
    turns: int = 0


class AgentDojoEnvironment:
    """One episode. Its state is copied deeply (2 ms)."""

    def __init__(self, worlds: Mapping[str, _World], known: frozenset[str], max_turns: int) -> None:
        """Made by `AgentDojo.make`."""
        self._worlds = worlds
        self._known = known
        self._max_turns = max_turns
        self._tools: tuple[Tool, ...] = ()
        self._state: _State | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Those of the task's suite: 11 to 28; none before `reset`."""
        return self._tools

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Tell what the user wants.

        Raises:
            NotFound: there is no such task, or it is one that is left out.
        """
        if task_id not in self._known:
            raise NotFound(f"there is no AgentDojo task {task_id!r}: they are called SUITE/user_task_N")
        suite, _, name = task_id.partition("/")
        world = self._worlds[suite]
        task = world.suite.user_tasks[name]
        before = task.init_environment(copy.deepcopy(world.start))
        self._tools = tuple(world.tools.values())
        self._state = _State(world, task, before, copy.deepcopy(before))
        return (Message(role="system", content=_SYSTEM), Message(role="user", content=task.PROMPT))

    def step(self, action: Message) -> Outcome:
        """Call the tools in order; a message without a call is the answer, and ends the episode.

        Raises:
            InvalidRequest: no episode is running.
            EnvironmentFailed: the checker of the task failed.
        """
        if self._state is None:
            raise InvalidRequest("no episode is running: call reset first")
        self._state = replace(self._state, turns=self._state.turns + 1)
        if not action.tool_calls:
            return Outcome(terminated=True, reward_parts=self._ended(action.content))
        results, invalid = [], 0
        for call in action.tool_calls:
            try:
                content = self._use(self._state, call)
            except Misused as mistake:
                content, invalid = f"Error: {mistake}", invalid + 1
            results.append(Message(role="tool", content=content, tool_call_id=call.id))
        if self._state.turns >= self._max_turns:
            return Outcome(truncated=True, reward_parts=self._ended(action.content), invalid_calls=invalid)
        return Outcome(messages=tuple(results), invalid_calls=invalid)

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._tools, self._copied(self._state)

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        self._tools, state = snapshot
        self._state = self._copied(state)

    def _copied(self, state: _State | None) -> _State | None:
        return None if state is None else replace(state, now=copy.deepcopy(state.now))

    def _use(self, state: _State, call: ToolCall) -> str:
        """What a tool says. Raises Misused for a call that none takes."""
        from agentdojo.functions_runtime import FunctionCall  # noqa: PLC0415  # optional: `stepwell[agentdojo]`

        arguments = json_arguments(call, state.world.tools)
        try:
            state.world.runtime.functions[call.name].parameters.model_validate(arguments)
        except (ValidationError, RecursionError) as error:
            raise Misused(f"{call.name} does not take that. {_told(error)}") from error
        made = FunctionCall(function=call.name, args=arguments, id=call.id)
        self._state = replace(state, trace=(*state.trace, made))
        result, error_text = state.world.runtime.run_function(state.now, call.name, arguments)
        return f"Error: {error_text}" if error_text is not None else _shown(result)

    def _ended(self, answer: str) -> tuple[tuple[str, float], ...]:
        """The verdict of AgentDojo's checkers, as its own suites ask them: of the calls if the task looks at these."""
        state, self._state = self._state, None
        assert state is not None
        try:
            solved = state.task.utility_from_traces(answer, state.before, state.now, list(state.trace))
            if solved is None:
                # A checker may change the state that it compares with; other forks share it.
                solved = state.task.utility(answer, copy.deepcopy(state.before), state.now)
        except Exception as error:  # a checker's own mistake, whatever it is
            what = f"AgentDojo's check of {state.world.suite.name}/{state.task.ID}"
            raise EnvironmentFailed(f"{what} failed: {type(error).__name__}: {error}") from error
        return (("solved", float(bool(solved))),)


def _suites() -> Mapping[str, Any]:
    try:
        from agentdojo.default_suites.v1 import tools  # noqa: PLC0415  # optional: `stepwell[agentdojo]`
        from agentdojo.task_suite.load_suites import get_suites  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency(f"AgentDojo needs: pip install 'stepwell[agentdojo]' ({error})") from error
    for name in _CLOCKS:
        module = getattr(tools, name)
        module.datetime = _StoppedClock(datetime)
    suites: Mapping[str, Any] = get_suites(_VERSION)
    return suites


class _StoppedDatetime(datetime.datetime):
    """Says the same whenever it is asked, so that an episode that is played again is the same."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        """The current day of AgentDojo's worlds."""
        return _TODAY.replace(tzinfo=tz)


class _StoppedClock(types.ModuleType):
    """The module `datetime` with a clock that stands, for the tools that put the time on what they write."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(vars(module))
        self.datetime = _StoppedDatetime


def _world(suite: Any) -> _World:
    from agentdojo.functions_runtime import FunctionsRuntime  # noqa: PLC0415  # optional: `stepwell[agentdojo]`

    tools = {function.name: _tool(function) for function in suite.tools}
    return _World(suite, suite.load_and_inject_default_environment({}), FunctionsRuntime(suite.tools), tools)


def _tool(function: Any) -> Tool:
    schema = {"properties": {}} | untitled(function.parameters.model_json_schema())
    return Tool(name=function.name, description=function.description, parameters=schema)


def _shown(result: object) -> str:
    """A result as AgentDojo shows it to its own agents, in YAML; as Python prints it where that cannot be."""
    from agentdojo.agent_pipeline.tool_execution import tool_result_to_str  # noqa: PLC0415  # optional, see above

    try:
        return str(tool_result_to_str(result))
    except (TypeError, yaml.YAMLError):
        return str(result)


def _told(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "It is nested too deeply."
    mistakes = error.errors()[:3]
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in mistakes)
