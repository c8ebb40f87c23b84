"""Tasks made for the library `verifiers` (MIT) from version 0.4 on: a `Taskset` of questions that are answered at once.

A task's own `@reward` methods (and judges) score the answer, on a trace such as the library's own harnesses record.
Tasks that need more than a conversation (tool servers, a container, preparation in a runtime) are refused: run them
with the library's harness as a black-box agent, whose model is the gateway. For environments of its older versions see
`verifiers_env`.
"""

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from stepwell.config import imported
from stepwell.environments.rows import held_out
from stepwell.errors import ConfigError, EnvironmentFailed, InvalidRequest, MissingDependency, NotFound
from stepwell.rendering.messages import Message, Tool
from stepwell.rollout.env import Environment, Outcome, TaskSet, TaskSetConfig

_TEST_SHARE: Final = 0.2
_HOOKS: Final = ("setup", "finalize", "stage_verifier")
"""Methods that the library calls with a runtime; a task that has its own needs one."""


class VerifiersTasksConfig(TaskSetConfig):
    """Settings of a `Taskset` of `verifiers`."""

    taskset: str
    """`path/file.py:name` of a subclass of `Taskset`, or of a function that makes one."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Settings of the class, or what the function is called with."""
    most: int = Field(default=10_000, ge=1)
    """Tasks that are read at most: a set may have no end."""

    def build(self) -> TaskSet:
        """The task set with these settings; see `VerifiersTasks` for what it may raise."""
        return VerifiersTasks(self)


class VerifiersTasks:
    """The task set: `task-N` in the set's order, a fifth of them held out by a hash of their keys."""

    name: Final = "verifiers_tasks"

    def __init__(self, config: VerifiersTasksConfig) -> None:
        """Load the tasks.

        Raises:
            MissingDependency: a version of `verifiers` that has task sets is not installed.
            ConfigError: the set cannot be loaded, is none, is empty, or has tasks that need more than a conversation.
        """
        library = _verifiers()
        taskset = _loaded(config, library)
        try:
            self._tasks = {f"task-{n}": task for n, task in enumerate(itertools.islice(taskset, config.most))}
        except Exception as error:  # somebody's code
            raise ConfigError(f"cannot read {config.taskset}: {type(error).__name__}: {error}") from error
        if not self._tasks:
            raise ConfigError(f"{config.taskset} has no tasks")
        for name, task in self._tasks.items():
            if reason := _refused(task, library):
                raise ConfigError(f"{config.taskset}, {name}: {reason}; run it as a black-box agent instead")
        self._test = {name for name, task in self._tasks.items() if held_out(str(task.key), _TEST_SHARE)}

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of `train` or `test`.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in ("train", "test"):
            raise InvalidRequest(f"no split {split!r}; use train or test")
        return [name for name in self._tasks if (name in self._test) == (split == "test")]

    def make(self) -> Environment:
        """A fresh episode."""
        return VerifiersTaskEnvironment(self._tasks)


class VerifiersTaskEnvironment:
    """One episode: a question, an answer."""

    tools: tuple[Tool, ...] = ()

    def __init__(self, tasks: Mapping[str, Any]) -> None:
        """Made by `VerifiersTasks.make`."""
        self._tasks = tasks
        self._task: Any = None
        self._asked: tuple[Any, ...] = ()

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Show the task's prompt.

        Raises:
            NotFound: there is no such task.
        """
        if task_id not in self._tasks:
            raise NotFound(f"there is no task {task_id!r}: they are called task-N")
        self._task = self._tasks[task_id]
        self._asked = _prompt(self._task.data)
        return tuple(Message(role=one.role, content=_content(one.content)) for one in self._asked)

    async def step(self, action: Message) -> Outcome:
        """Score the answer, and end.

        Raises:
            InvalidRequest: no episode is running.
            EnvironmentFailed: a reward of the task failed.
        """
        if self._task is None:
            raise InvalidRequest("no episode is running: call reset first")
        task, self._task = self._task, None
        trace = _trace(task, self._asked, action)
        try:
            await task.score(trace, runtime=None)
        except Exception as error:  # somebody's code
            raise EnvironmentFailed(f"the task's rewards failed: {type(error).__name__}: {error}") from error
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing:
            raise EnvironmentFailed(f"the task's reward {missing[0]} gave nothing")
        parts = tuple((name, float(reward.value)) for name, reward in trace.rewards.items())
        return Outcome(terminated=True, reward_parts=parts, invalid_calls=len(action.tool_calls))


def _verifiers() -> Any:
    try:
        import verifiers.v1  # noqa: PLC0415  # optional: `stepwell[verifiers]`
        from verifiers.v1.utils.generic import concrete_type  # noqa: F401, PLC0415  # earlier versions have none
    except ImportError as error:
        raise MissingDependency(f"these tasks need: pip install 'verifiers>=0.4,<0.5' ({error})") from error
    return verifiers.v1


def _loaded(config: VerifiersTasksConfig, library: Any) -> Any:
    from verifiers.v1.utils.generic import concrete_type  # noqa: PLC0415  # optional: see above

    named = imported(config.taskset)
    try:
        if isinstance(named, type) and issubclass(named, library.Taskset):
            settings = concrete_type(named, library.TasksetConfig) or library.TasksetConfig
            made = named(settings(**config.arguments))
        else:
            made = named(**config.arguments)
    except Exception as error:  # somebody's code
        raise ConfigError(f"cannot load {config.taskset}: {type(error).__name__}: {error}") from error
    if not isinstance(made, library.Taskset):
        raise ConfigError(f"{config.taskset} gave a {type(made).__name__}, not a verifiers.v1.Taskset")
    return made


def _refused(task: Any, library: Any) -> str:
    """Why a task cannot be played as a conversation; empty if it can."""
    kind = type(task)
    if task.data.prompt is None:
        return "it has no prompt"
    if kind.NEEDS_CONTAINER or task.data.image is not None:
        return "it needs a container"
    if kind.toolsets(task.config):
        return "it has tool servers"
    if any(getattr(kind, hook, None) is not getattr(library.Task, hook, None) for hook in _HOOKS):
        return "it prepares a runtime"
    if any(_wants_runtime(function) for function in task.hooks("reward")):
        return "its rewards look into a runtime"
    return ""


def _wants_runtime(function: Any) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _prompt(data: Any) -> tuple[Any, ...]:
    """The messages that a task opens with, in the library's types."""
    from verifiers.v1.types import SystemMessage, UserMessage  # noqa: PLC0415  # optional: see above

    system = (SystemMessage(content=data.system_prompt),) if data.system_prompt else ()
    asked = (UserMessage(content=data.prompt),) if isinstance(data.prompt, str) else tuple(data.prompt)
    return (*system, *asked)


def _trace(task: Any, asked: Sequence[Any], action: Message) -> Any:
    """What the library's harnesses would have recorded of the question and the answer."""
    from verifiers.v1.configs.agent import AgentConfig  # noqa: PLC0415  # optional: see above
    from verifiers.v1.graph import MessageNode  # noqa: PLC0415
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask  # noqa: PLC0415
    from verifiers.v1.types import AssistantMessage  # noqa: PLC0415

    said = AssistantMessage(content=_text(action.content), reasoning_content=_text(action.reasoning) or None)
    nodes = [
        MessageNode(parent=place - 1 if place else None, message=message, sampled=message is said)
        for place, message in enumerate((*asked, said))
    ]
    told = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return Trace(task=told, agent=AgentInfo(config=AgentConfig()), nodes=nodes, is_completed=True, ok=True)


def _content(content: Any) -> str:
    """The text of a content; of pieces, those that are text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content if getattr(part, "text", None))


def _text(text: str) -> str:
    """Without lone surrogates, which the library refuses."""
    return text.encode("utf-8", "replace").decode()
