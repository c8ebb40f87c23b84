"""Environments behind an OpenEnv server, spoken to over its WebSocket; nobody's code is run here.

The protocol is that of OpenEnv (BSD-3): a connection is a session, whose `reset` and `step` answer with an observation,
a reward and whether it is done. There is no snapshot, so an episode is forked by playing it again; the server's `state`
tells whether it came to the same. Only the package `websockets` (BSD-3) is needed.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
from pydantic import Field

from stepwell.environments.function_tasks import Task, named_tasks
from stepwell.environments.tool_arguments import Misused, checked_arguments, untitled
from stepwell.errors import ConfigError, EnvironmentFailed, InvalidRequest, MissingDependency, NotFound
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Environment, Outcome, TaskSet, TaskSetConfig

_TOOL: Final = "act"
_OWN_FIELDS: Final = ("metadata",)
"""Fields of an action that are the protocol's, not the agent's."""
_LARGEST: Final = 16 * 2**20
"""Bytes of one message of the server."""


class OpenEnvConfig(TaskSetConfig):
    """Settings of an environment behind an OpenEnv server."""

    url: str = Field(pattern="^https?://")
    """The server, such as `http://127.0.0.1:8000`."""
    tasks: str | None = None
    """A file of rows (`.jsonl` or `.json`), or `path/file.py:name` of a list: `prompt`, and `reset`, an object of what
    the server's `reset` is given. None has 1,000 episodes per split that differ by their seeds."""
    system: str = ""
    """System message; none if empty."""
    text_field: str | None = None
    """The agent writes plain text, which becomes this field of the action. None offers a tool `act` with all fields."""
    observation_field: str | None = None
    """The field of an observation that is shown. None shows all of it, as JSON."""
    max_turns: int = Field(default=20, ge=1)
    """Assistant messages after which the episode is truncated."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds for one answer of the server."""

    def build(self) -> TaskSet:
        """The task set with these settings; see `OpenEnv` for what it may raise."""
        return OpenEnv(self)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all episodes share, and none changes."""

    config: OpenEnvConfig
    tasks: Mapping[str, Task]
    tool: Tool


class OpenEnv:
    """The task set: rows of a file, or numbered episodes."""

    name: Final = "openenv"

    def __init__(self, config: OpenEnvConfig) -> None:
        """Ask the server what its actions are like.

        Raises:
            EnvironmentFailed: the server does not answer.
            ConfigError: actions have no field `text_field`, or `tasks` leads nowhere.
            InvalidRecord: a row is broken; the message has its line.
            MissingDependency: `websockets` is not installed, or the file cannot be read.
        """
        _connect()
        schema = _action_schema(config)
        if config.text_field is not None and config.text_field not in schema["properties"]:
            known = ", ".join(schema["properties"]) or "none"
            raise ConfigError(f"`text_field`: actions have no field {config.text_field!r}; they have {known}")
        tasks = _numbered() if config.tasks is None else named_tasks(config.tasks)
        tool = Tool(name=_TOOL, description="Act in the environment.", parameters=schema)
        self._shared = _Shared(config, tasks, tool)

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of `train` or `test`.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in ("train", "test"):
            raise InvalidRequest(f"no split {split!r}; use train or test")
        return [key for key, task in self._shared.tasks.items() if task.split == split]

    def make(self) -> Environment:
        """A fresh episode."""
        return OpenEnvEnvironment(self._shared)


class OpenEnvEnvironment:
    """One episode: one connection."""

    def __init__(self, shared: _Shared) -> None:
        """Made by `OpenEnv.make`."""
        self._shared = shared
        self._socket: Any = None
        self._turns = 0
        self._running = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """`act`, with the fields of an action; none if the agent writes plain text."""
        return (self._shared.tool,) if self._shared.config.text_field is None else ()

    async def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        """Connect, begin the episode, and show the prompt and the first observation.

        Raises:
            NotFound: there is no such task.
            EnvironmentFailed: the server does not answer, or has no free session.
        """
        task = self._shared.tasks.get(task_id)
        if task is None:
            raise NotFound(f"there is no task {task_id!r} in {self._shared.config.tasks or 'episodes train-N, test-N'}")
        await self.close()
        await self._open()
        # The name of the episode is part of the server's state, which must be the same when it is played again.
        drawn = int.from_bytes(hashlib.sha256(f"{task_id} {seed}".encode()).digest()[:4], "big") >> 1
        begin = {"seed": drawn, "episode_id": f"{task_id}-{seed}"} | dict(task.row.get("reset") or {})
        answer = await self._ask("reset", begin)
        self._turns, self._running = 0, True
        system = self._shared.config.system
        opening = (Message(role="system", content=system),) if system else ()
        shown = "\n\n".join(filter(None, [task.prompt, self._shown(answer)]))
        return (*opening, Message(role="user", content=shown))

    async def step(self, action: Message) -> Outcome:
        """Send the message's text, or its calls in order, until the episode is done.

        Raises:
            InvalidRequest: no episode is running.
            EnvironmentFailed: the server failed.
        """
        if not self._running:
            raise InvalidRequest("no episode is running: call reset first")
        self._turns += 1
        results: list[Message] = []
        reward, invalid, done = 0.0, 0, False
        text_only = self._shared.config.text_field is not None
        for call in (None,) if text_only else action.tool_calls:
            identity = call.id if call else None
            try:
                answer = await self._ask("step", self._made(action, call))
            except Misused as mistake:
                invalid += call is not None
                results.append(_told(f"Error: {mistake}", identity))
                continue
            reward += float(answer.get("reward") or 0.0)
            done = bool(answer.get("done"))
            results.append(_told(self._shown(answer), identity))
            if done:
                break
        return self._outcome(tuple(results), reward, invalid, done)

    async def state_hash(self) -> bytes:
        """See `Hashed`: of what the server says of its state."""
        state = await self._ask("state", None)
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).digest()[:16]

    async def close(self) -> None:
        """See `Closing`."""
        socket, self._socket = self._socket, None
        self._running = False
        if socket is not None:
            await socket.close()

    def _made(self, action: Message, call: ToolCall | None) -> Mapping[str, Any]:
        """The action of a call, or of a text. Raises Misused."""
        field = self._shared.config.text_field
        if field is not None:
            return {field: action.content}
        assert call is not None
        return checked_arguments(call, {_TOOL: self._shared.tool})

    def _outcome(self, results: tuple[Message, ...], reward: float, invalid: int, done: bool) -> Outcome:
        truncated = not done and self._turns >= self._shared.config.max_turns
        parts = (("reward", reward),)
        if done or truncated:
            self._running = False
            return Outcome(terminated=done, truncated=truncated, reward_parts=parts, invalid_calls=invalid)
        messages = results or (Message(role="user", content=f"Call the tool {_TOOL} to go on."),)
        return Outcome(messages=messages, reward_parts=parts, invalid_calls=invalid)

    def _shown(self, answer: Mapping[str, Any]) -> str:
        observation = answer.get("observation", {})
        field = self._shared.config.observation_field
        if field is None:
            return json.dumps(observation, ensure_ascii=False)
        if not isinstance(observation, Mapping) or field not in observation:
            raise EnvironmentFailed(f"the observation of {self._shared.config.url} has no field {field!r}")
        value = observation[field]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    async def _open(self) -> None:
        config = self._shared.config
        address = "ws" + config.url.removeprefix("http").rstrip("/") + "/ws"
        try:
            self._socket = await _connect()(address, max_size=_LARGEST, open_timeout=config.timeout, proxy=None)
        except Exception as error:  # the package has many names for it
            raise EnvironmentFailed(f"cannot connect to {address}: {type(error).__name__}: {error}") from error

    async def _ask(self, kind: str, data: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """What the server answers. Raises Misused for an action that it does not take."""
        config = self._shared.config
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        try:
            async with asyncio.timeout(config.timeout):
                await self._socket.send(json.dumps(message))
                answer = json.loads(await self._socket.recv())
        except TimeoutError as error:
            raise EnvironmentFailed(f"{config.url} did not answer {kind} within {config.timeout} s") from error
        except Exception as error:  # a closed connection, or no JSON
            raise EnvironmentFailed(f"{config.url} failed at {kind}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise EnvironmentFailed(f"{config.url} does not speak OpenEnv's protocol: {answer!r:.200}")
        found: dict[str, Any] = answer["data"]
        if answer.get("type") != "error":
            return found
        if kind == "step" and found.get("code") == "VALIDATION_ERROR":
            raise Misused(f"the environment does not take that: {_reasons(found)}")
        raise EnvironmentFailed(f"{config.url} failed at {kind}: {found.get('message')} ({found.get('code')})")


def _told(text: str, identity: str | None) -> Message:
    """An observation: of a call, or for an agent that writes plain text."""
    if identity is None:
        return Message(role="user", content=text)
    return Message(role="tool", content=text, tool_call_id=identity)


def _reasons(error: Mapping[str, Any]) -> str:
    listed = [one for one in error.get("errors", []) if isinstance(one, dict)][:3]
    return "; ".join(f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg')}" for one in listed)


def _numbered() -> Mapping[str, Task]:
    return {f"{split}-{n}": Task(split, "", {}) for split in ("train", "test") for n in range(1_000)}


def _action_schema(config: OpenEnvConfig) -> dict[str, Any]:
    url = f"{config.url.rstrip('/')}/schema"
    try:
        answer = httpx.get(url, timeout=config.timeout, trust_env=False).raise_for_status().json()
        schema = untitled(answer["action"])
        named = {name: one for name, one in schema["properties"].items() if name not in _OWN_FIELDS}
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentFailed(
            f"{url} does not tell what actions are like: {type(error).__name__}: {error}"
        ) from error
    return {"type": "object", **schema, "properties": named}


def _connect() -> Any:
    try:
        from websockets.asyncio.client import connect  # noqa: PLC0415  # optional: `stepwell[openenv]`
    except ImportError as error:
        raise MissingDependency("OpenEnv needs: pip install 'stepwell[openenv]'") from error
    return connect
