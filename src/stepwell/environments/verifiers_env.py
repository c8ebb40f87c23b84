"""Environments made for the library `verifiers` (MIT) of versions below 0.3: an `Environment` with a rubric.

Such an environment has a loop of its own, which asks a client for the model's answers. Here it gets a client that is
ours: each question of the loop is an observation, and the policy's next message the answer. So all that an environment
overrides works, and none of its code is changed. It is forked by playing it again. For version 1 of that library's
interfaces see `verifiers_tasks`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from stepwell.config import imported
from stepwell.environments.rows import held_out
from stepwell.environments.tool_arguments import Misused, checked_arguments
from stepwell.errors import ConfigError, EnvironmentFailed, InvalidRequest, MissingDependency, NotFound, StepwellError
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Environment, Outcome, TaskSet, TaskSetConfig

_TEST_SHARE: Final = 0.2
_LIMITS: Final = ("max_turns_reached", "timeout_reached", "prompt_too_long", "max_total_completion_tokens_reached")
"""Why verifiers stops an episode that has not come to an end of its own."""


class VerifiersConfig(TaskSetConfig):
    """Settings of an environment of `verifiers`."""

    environment: str
    """The name of an installed environment, or `path/file.py:load_environment` of a function that makes one."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """What the function is called with."""

    def build(self) -> TaskSet:
        """The task set with these settings; see `Verifiers` for what it may raise."""
        return Verifiers(self)


class Verifiers:
    """The task set: the rows of its data sets, as `train-N` and `test-N`."""

    name: Final = "verifiers"

    def __init__(self, config: VerifiersConfig) -> None:
        """Load the environment, with its data.

        Raises:
            MissingDependency: a version of `verifiers` that has environments is not installed.
            ConfigError: the environment cannot be loaded, or is none.
        """
        self._environment = _loaded(config, _verifiers())
        train, test = self._environment.build_dataset(), self._environment.build_eval_dataset()
        rows = [("train", number, row) for number, row in enumerate(train if train is not None else ())]
        rows += [("test", number, row) for number, row in enumerate(test if test is not None else ())]
        if test is None:  # one set: a part of it is held out
            rows = [("test" if held_out(str(row["prompt"]), _TEST_SHARE) else "train", n, row) for _, n, row in rows]
        self._rows: Mapping[str, Mapping[str, Any]] = {f"{split}-{number}": row for split, number, row in rows}

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of `train` or `test`. Without a data set for evaluation, a fifth of the other is held out.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in ("train", "test"):
            raise InvalidRequest(f"no split {split!r}; use train or test")
        return [task_id for task_id in self._rows if task_id.startswith(f"{split}-")]

    def make(self) -> Environment:
        """A fresh episode."""
        return VerifiersEnvironment(self._environment, self._rows)


@dataclass(frozen=True, slots=True)
class _Question:
    """What the loop asks the model: the conversation so far."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


class VerifiersEnvironment:
    """One episode: the library's loop runs in a task of its own, and waits for the policy."""

    def __init__(self, environment: Any, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Made by `Verifiers.make`."""
        self._environment = environment
        self._rows = rows
        self._loop: asyncio.Task[Any] | None = None
        self._questions: asyncio.Queue[_Question] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._seen: tuple[Message, ...] = ()
        self._tools: tuple[Tool, ...] = ()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Those that the loop offers; none before `reset`."""
        return self._tools

    async def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Begin the loop, up to its first question.

        Raises:
            NotFound: there is no such task.
            EnvironmentFailed: the loop failed, or ended without a question.
        """
        row = self._rows.get(task_id)
        if row is None:
            raise NotFound(f"there is no task {task_id!r}: they are called train-N and test-N")
        await self.close()
        self._questions, self._answers = asyncio.Queue(), asyncio.Queue()
        client = _client(self._ask)
        self._loop = asyncio.create_task(self._environment.rollout(dict(row), client, "policy", {}))
        question = await self._next()
        if question is None:
            await self._verdict()
            raise EnvironmentFailed(f"task {task_id} ended before the policy was asked anything")
        self._seen, self._tools = question.messages, question.tools
        return question.messages

    async def step(self, action: Message) -> Outcome:
        """Answer the loop's question; its next one, or its verdict, is the outcome.

        Raises:
            InvalidRequest: no episode is running.
            EnvironmentFailed: the loop or the rubric failed, or the loop rewrote the conversation.
        """
        if self._loop is None:
            raise InvalidRequest("no episode is running: call reset first")
        invalid = sum(not _taken(call, self._tools) for call in action.tool_calls)
        await self._answers.put(action)
        question = await self._next()
        if question is None:
            reward, truncated = await self._verdict()
            parts = (("reward", reward),)
            return Outcome(terminated=not truncated, truncated=truncated, reward_parts=parts, invalid_calls=invalid)
        known = len(self._seen)
        if question.messages[:known] != self._seen or len(question.messages) <= known + 1:
            raise EnvironmentFailed("this environment rewrites its conversation, which an episode here cannot follow")
        self._seen = question.messages
        return Outcome(messages=question.messages[known + 1 :], invalid_calls=invalid)

    async def close(self) -> None:
        """See `Closing`."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await loop

    async def _ask(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> Message:
        offered = tuple(
            Tool(name=tool.name, description=tool.description or "", parameters=dict(tool.parameters))
            for tool in tools or ()
        )
        await self._questions.put(_Question(tuple(map(_ours, messages)), offered))
        return await self._answers.get()

    async def _next(self) -> _Question | None:
        """The next question; None if the loop has ended."""
        assert self._loop is not None
        question = asyncio.ensure_future(self._questions.get())
        await asyncio.wait({question, self._loop}, return_when=asyncio.FIRST_COMPLETED)
        if question.done():
            return question.result()
        question.cancel()
        return None

    async def _verdict(self) -> tuple[float, bool]:
        """(reward, whether a limit ended the episode) of a loop that has ended."""
        loop, self._loop = self._loop, None
        assert loop is not None
        try:
            state = await loop
            if state.get("error") is None:
                await self._environment.rubric.score_rollout(state)
        except StepwellError:
            raise
        except Exception as error:  # somebody's environment
            raise EnvironmentFailed(f"the environment failed: {type(error).__name__}: {error}") from error
        if state.get("error") is not None:
            raise EnvironmentFailed(f"the environment failed: {state['error']!r}")
        limited = state.get("stop_condition") in _LIMITS and getattr(self._environment, "max_turns", 0) != 1
        return float(state["reward"] or 0.0), limited


def _verifiers() -> Any:
    try:
        import verifiers  # noqa: PLC0415  # optional: `stepwell[verifiers]`
    except ImportError as error:
        raise MissingDependency(f"this environment needs: pip install 'verifiers>=0.2,<0.3' ({error})") from error
    if not hasattr(verifiers, "MultiTurnEnv"):
        raise MissingDependency(
            f"verifiers {verifiers.__version__} has tasks only, see `verifiers_tasks`; "
            "environments need: pip install 'verifiers>=0.2,<0.3'"
        )
    return verifiers


def _loaded(config: VerifiersConfig, library: Any) -> Any:
    try:
        if ":" in config.environment:
            made = imported(config.environment)(**config.arguments)
        else:
            made = library.load_environment(config.environment, **config.arguments)
    except ConfigError:
        raise
    except Exception as error:  # somebody's code
        raise ConfigError(f"cannot load {config.environment}: {type(error).__name__}: {error}") from error
    if not isinstance(made, library.Environment):
        raise ConfigError(f"{config.environment} gave a {type(made).__name__}, not a verifiers.Environment")
    return made


def _client(ask: Callable[[Sequence[Any], Sequence[Any] | None], Any]) -> Any:
    """A client of verifiers whose model is whoever `ask` asks."""
    from verifiers import types  # noqa: PLC0415  # optional: see above
    from verifiers.clients import Client  # noqa: PLC0415

    async def get_response(_: Any, prompt: Any, model: str, *__: Any, tools: Any = None, **___: Any) -> Any:
        answer = await ask(prompt, tools)
        calls = [
            types.ToolCall(id=call.id, name=_text(call.name), arguments=_text(call.arguments))
            for call in answer.tool_calls
        ]
        message = types.ResponseMessage(
            content=_text(answer.content),
            reasoning_content=_text(answer.reasoning) or None,
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return types.Response(id="stepwell", created=0, model=model, message=message)

    # The other methods are for clients of a service, and none of them is called.
    unused = dict.fromkeys(Client.__abstractmethods__)
    return type("PolicyClient", (Client,), {**unused, "get_response": get_response})(None)


def _ours(message: Any) -> Message:
    calls = tuple(
        ToolCall(id=call.id, name=call.name, arguments=call.arguments)
        for call in getattr(message, "tool_calls", None) or ()
    )
    return Message(
        role="user" if message.role == "text" else message.role,
        content=_content(message.content),
        reasoning=getattr(message, "reasoning_content", None) or "",
        tool_calls=calls,
        tool_call_id=getattr(message, "tool_call_id", None),
    )


def _content(content: Any) -> str:
    """The text of a content; of pieces, those that are text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content if getattr(part, "text", None))


def _text(text: str) -> str:
    """Without lone surrogates, which the library refuses."""
    return text.encode("utf-8", "replace").decode()


def _taken(call: ToolCall, tools: Sequence[Tool]) -> bool:
    try:
        checked_arguments(call, {tool.name: tool for tool in tools})
    except Misused:
        return False
    return True
