"""Our environments behind OpenEnv's protocol (BSD-3), for clients that speak it.

A connection to `/ws` is an episode of its own: `reset` with `task_id` (or `split` and `index`) and `seed`, then `step`
with an assistant message, `{"content": "…", "tool_calls": [{"id", "name", "arguments"}]}`. An observation holds the new
messages, and the tools at the beginning. `/schema` and `/health` answer as OpenEnv's own server does.
"""

import asyncio
import json
from typing import Any, Final

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stepwell.errors import InvalidRequest, NotFound, StepwellError
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rendering.wire import message_to_json, tool_to_json
from stepwell.rollout.env import TaskSet
from stepwell.rollout.episode import Episode

_LARGEST: Final = 2**20
"""Characters of a message that are read."""


class CallAction(BaseModel):
    """A call of a tool."""

    id: str
    name: str
    arguments: str = Field(description="JSON text")


class MessageAction(BaseModel):
    """What the policy says."""

    model_config = ConfigDict(extra="ignore")

    content: str = ""
    tool_calls: list[CallAction] = Field(default_factory=list)

    @property
    def message(self) -> Message:
        """The same as ours."""
        calls = tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in self.tool_calls)
        return Message(role="assistant", content=self.content, tool_calls=calls)


class _Reset(BaseModel):
    model_config = ConfigDict(extra="ignore")

    task_id: str | None = None
    split: str = "train"
    index: int = Field(default=0, ge=0)
    seed: int = 0


class _Session:
    """One connection."""

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._episode: Episode | None = None
        self._task_id = ""

    async def answer(self, kind: object, data: Any) -> dict[str, Any]:
        """What follows a message. Raises ValidationError and our errors."""
        if kind == "reset":
            return _said("observation", await self._reset(_Reset.model_validate(data)))
        if kind == "step":
            return _said("observation", await self._step(MessageAction.model_validate(data)))
        if kind == "state":
            turns = self._episode.turns if self._episode else 0
            return _said("state", {"episode_id": self._task_id, "step_count": turns})
        return _error(f"Unknown message type: {kind}", "UNKNOWN_TYPE")

    async def close(self) -> None:
        """End the episode."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.close()

    async def _reset(self, wanted: _Reset) -> dict[str, Any]:
        await self.close()
        self._task_id = wanted.task_id or self._named(wanted)
        self._episode = await Episode.begin(self._tasks, self._task_id, seed=wanted.seed)
        tools = [tool_to_json(tool) for tool in self._episode.tools]
        shown = {"messages": [message_to_json(message) for message in self._episode.opening], "tools": tools}
        return {"observation": shown, "reward": None, "done": False}

    def _named(self, wanted: _Reset) -> str:
        ids = self._tasks.tasks(wanted.split)
        if wanted.index >= len(ids):
            raise NotFound(f"{wanted.split} has {len(ids)} tasks; there is no index {wanted.index}")
        return ids[wanted.index]

    async def _step(self, action: MessageAction) -> dict[str, Any]:
        if self._episode is None:
            raise InvalidRequest("no episode is running: reset first")
        outcome = await self._episode.step(action.message)
        shown = {
            "messages": [message_to_json(message) for message in outcome.messages],
            "reward_parts": dict(outcome.reward_parts),
            "truncated": outcome.truncated,
        }
        done = outcome.terminated or outcome.truncated
        if done:
            await self.close()
        return {"observation": shown, "reward": outcome.reward, "done": done}


def openenv_app(tasks: TaskSet, *, sessions: int = 256) -> FastAPI:
    """An application that serves `tasks`; at most `sessions` connections at once."""
    app, free = FastAPI(title=f"Stepwell {tasks.name}"), asyncio.Semaphore(sessions)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.get("/schema")
    def schema() -> dict[str, Any]:
        anything = {"type": "object"}
        return {"action": MessageAction.model_json_schema(), "observation": anything, "state": anything}

    @app.websocket("/ws")
    async def connect(socket: WebSocket) -> None:
        await socket.accept()
        if free.locked():
            await socket.send_json(_error("no session is free", "CAPACITY_REACHED"))
            await socket.close()
            return
        async with free:
            await _converse(socket, _Session(tasks))

    return app


async def _converse(socket: WebSocket, session: _Session) -> None:
    try:
        while (answer := await _answered(session, await socket.receive_text())) is not None:
            await socket.send_json(answer)
    except WebSocketDisconnect:
        return
    finally:
        await session.close()


async def _answered(session: _Session, text: str) -> dict[str, Any] | None:
    """What a message is answered; None if it ends the session."""
    try:
        asked = json.loads(text[:_LARGEST])
        kind, data = asked.get("type"), asked.get("data", {})
        return None if kind == "close" else await session.answer(kind, data)
    except ValidationError as error:
        listed = json.loads(error.json(include_url=False, include_input=False))
        return _error("Invalid message", "VALIDATION_ERROR", errors=listed)
    except StepwellError as error:
        return _error(str(error), "EXECUTION_ERROR")
    except (ValueError, RecursionError, AttributeError) as error:
        return _error(f"Invalid JSON: {error}", "INVALID_JSON")


def _said(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "data": data}


def _error(message: str, code: str, **more: object) -> dict[str, Any]:
    return _said("error", {"message": message, "code": code, **more})
