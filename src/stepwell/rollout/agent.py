"""The built-in agent: the unmodified OpenAI SDK, pointed at a gateway."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import openai
from openai.types.chat import ChatCompletion
from pydantic import Field

from stepwell.config import Config
from stepwell.errors import ContextOverflow, EngineError, InvalidRequest, StepwellError
from stepwell.rendering.bridge import AS_SENT
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.wire import message_from_json, message_to_json, tool_to_json


@dataclass(frozen=True, slots=True)
class Action:
    """What the policy answered, and which recorded step it was."""

    message: Message
    step_id: str
    prompt_tokens: int = 0
    response_tokens: int = 0


class Agent(Protocol):
    """Asks the policy for the next message of a trajectory."""

    async def act(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The policy's answer.

        Raises:
            ContextOverflow: the conversation no longer fits.
            EngineError: the model could not be reached or failed.
            InvalidRequest: the gateway refused the request.
        """
        ...

    async def look(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Show the policy a state that it will not act in, so that its prompt is recorded. Raises as `act`."""
        ...

    async def count(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """Tokens of the prompt that these make. Raises as `act`."""
        ...


_PASSING: Final = (408, 425, 429)
"""Statuses below 500 that say nothing of what was asked: another time it may go well."""
_Answer = TypeVar("_Answer", bound=openai.BaseModel)


class _Count(openai.BaseModel):
    count: int


class ChatAgentConfig(Config):
    """How the agent asks for completions."""

    temperature: float = Field(default=1.0, ge=0, le=2)
    """Sampling temperature; 1 is the distribution that the trainer optimises."""
    max_tokens: int = Field(default=64, ge=1)
    """Upper bound on the tokens of one response."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds to wait for one response."""
    patience: float = Field(default=120.0, ge=0)
    """Seconds to wait for a gateway that has answered before and cannot be reached now, as it begins anew, say."""


class ChatAgent:
    """OpenAI chat completions; the trajectory is named in the URL, as any agent could do.

    A small policy answers faster than the SDK's comfort takes. So calls go through its door for plain requests, since
    `chat.completions.create` would walk through messages that are in wire form already, and over aiohttp, since the
    default client probes every idle connection before each request. That is a third of the CPU time per call.
    """

    def __init__(
        self,
        gateway_url: str,
        model: str,
        config: ChatAgentConfig,
        *,
        key: str = "unused",
        reached: bool = False,
        foreign: bool = False,
    ) -> None:
        """Ask the gateway at `gateway_url`.

        Args:
            gateway_url: without `/v1`, e.g. `http://127.0.0.1:8000`.
            model: its name there.
            config: how to ask.
            key: of the gateway.
            reached: it is known to be there.
            foreign: it is somebody else's server, that knows of no trajectories and counts no tokens.
        """
        self._url = gateway_url.rstrip("/")
        self._model = model
        self._config = config
        self._reached = reached
        self._foreign = foreign
        self._client = openai.AsyncOpenAI(
            base_url=f"{self._url}/v1",
            api_key=key,
            timeout=config.timeout,
            max_retries=2,
            http_client=openai.DefaultAioHttpClient(),
        )

    async def act(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """One chat completion (see the protocol)."""
        completion = await self._asked(trajectory_id, self._body(messages, tools), {})
        try:  # the SDK believes whatever it is sent
            answer = message_from_json(completion.choices[0].message.to_dict())
            used = completion.usage
            tokens = (used.prompt_tokens, used.completion_tokens) if used else (0, 0)
            return Action(answer, (completion.id or "").removeprefix("chatcmpl-"), *tokens)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise EngineError(f"what {self._url} answered is no chat completion: {error!r}") from error

    async def look(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """One chat completion of one token (see the protocol)."""
        body = self._body(messages, tools) | {"max_tokens": 1}
        await self._asked(trajectory_id, body, {"x-stepwell-side": "state"})

    async def count(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """Asks the gateway, which knows the model's template (see the protocol)."""
        found = await self._post(f"{self._url}/tokenize", _Count, self._body(messages, tools), {})
        return found.count

    async def _asked(self, trajectory_id: str, body: dict[str, Any], headers: dict[str, str]) -> ChatCompletion:
        place = "" if self._foreign else f"/t/{trajectory_id}"
        return await self._post(f"{self._url}{place}/v1/chat/completions", ChatCompletion, body, headers)

    async def _post(self, url: str, kind: type[_Answer], body: dict[str, Any], headers: dict[str, str]) -> _Answer:
        started, wait, again = time.monotonic(), 0.2, headers
        while True:
            try:
                answer = await self._client.post(url, cast_to=kind, body=body, options={"headers": again})
            except openai.OpenAIError as error:
                lost = isinstance(error, openai.APIConnectionError) and self._reached
                if not lost or time.monotonic() - started > self._config.patience:
                    raise self._explained(error) from error
                await asyncio.sleep(wait)
                again = {**headers, "x-stainless-retry-count": "1"}  # it may have been answered: that is no second step
                wait = min(2 * wait, 5.0)
            except ValueError as error:  # of the JSON that it should be
                raise EngineError(f"what {self._url} answered is no JSON: {error}") from error
            else:
                self._reached = True
                return answer

    def _explained(self, error: openai.OpenAIError) -> StepwellError:
        wrong = EngineError if self._foreign else InvalidRequest  # of strangers nobody knows what they can take
        if isinstance(error, openai.BadRequestError):
            overflow = error.code == "context_length_exceeded"
            return ContextOverflow(error.message) if overflow else wrong(error.message)
        if isinstance(error, openai.APIStatusError):
            asked_wrongly = error.status_code < 500 and error.status_code not in _PASSING
            return wrong(error.message) if asked_wrongly else EngineError(error.message)
        return EngineError(f"no answer from {self._url}: {error}")

    def _body(self, messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [message_to_json(message) for message in messages],
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
        }
        if not self._foreign and any(message.role == "assistant" for message in messages):
            body["chat_template_kwargs"] = {AS_SENT: True}  # what a context policy leaves out is not to be put back
        if tools:
            body["tools"] = [tool_to_json(tool) for tool in tools]
        return body

    async def __aenter__(self) -> "ChatAgent":
        """Close the connections at the end of an `async with`."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
