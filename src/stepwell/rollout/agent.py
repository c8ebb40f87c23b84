"""The built-in agent: chat completions of a gateway, or of any server that has OpenAI's, over plain HTTP."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
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
_RETRIES: Final = 2
"""Of a call that may go well another time."""
_RETRY: Final = "x-stainless-retry-count"
"""The header by which OpenAI's clients say so: a gateway that has answered before does not take it for another step."""
_LONGEST_PAUSE: Final = 60.0
"""Seconds of a `Retry-After` that are waited for; a server that wants more has failed."""

_LONGEST_WORDS: Final = 500
"""Characters of an error that is in no known shape."""


class _Refused(Exception):
    """The server answered, but not with what was asked for."""

    def __init__(self, status: int, message: str, code: object, retry_after: float | None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.retry_after = status, message, code, retry_after

    @property
    def passing(self) -> bool:
        """Whether it may go well another time."""
        return self.status >= 500 or self.status in _PASSING


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

    A small policy answers faster than OpenAI's SDK takes to ask and to read, hence none (docs/decisions/0031).
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
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._session: aiohttp.ClientSession | None = None  # is made within the event loop that it belongs to

    async def act(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """One chat completion (see the protocol)."""
        completion = await self._asked(trajectory_id, self._body(messages, tools), {})
        try:
            answer = message_from_json(completion["choices"][0]["message"])
            used = completion.get("usage") or {}
            tokens = (int(used.get("prompt_tokens") or 0), int(used.get("completion_tokens") or 0))
            return Action(answer, str(completion.get("id") or "").removeprefix("chatcmpl-"), *tokens)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise EngineError(f"what {self._url} answered is no chat completion: {error!r}") from error

    async def look(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """One chat completion of one token (see the protocol)."""
        body = self._body(messages, tools) | {"max_tokens": 1}
        await self._asked(trajectory_id, body, {"x-stepwell-side": "state"})

    async def count(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """Asks the gateway, which knows the model's template (see the protocol)."""
        found = await self._post(f"{self._url}/tokenize", self._body(messages, tools), {})
        try:
            return int(found["count"])
        except (LookupError, TypeError, ValueError) as error:
            raise EngineError(f"what {self._url} answered is no count of tokens: {error!r}") from error

    async def _asked(self, trajectory_id: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        place = "" if self._foreign else f"/t/{trajectory_id}"
        return await self._post(f"{self._url}{place}/v1/chat/completions", body, headers)

    async def _post(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        """What the server answers, from JSON; whatever may go well another time is asked for again."""
        started, data, attempt = time.monotonic(), json.dumps(body).encode(), 0
        while True:
            wait = min(0.2 * 2**attempt, 5.0)
            said = headers if attempt == 0 else {**headers, _RETRY: str(attempt)}
            try:
                answer = await self._once(url, data, said)
            except _Refused as refusal:
                wait = wait if refusal.retry_after is None else refusal.retry_after
                if not refusal.passing or attempt >= _RETRIES or wait > _LONGEST_PAUSE:
                    raise self._explained(refusal) from refusal
            except (aiohttp.ClientError, TimeoutError) as error:
                lost = self._reached and time.monotonic() - started < self._config.patience
                if attempt >= _RETRIES and not lost:
                    why = str(error) or f"nothing within {self._config.timeout:g} s"
                    raise EngineError(f"no answer from {self._url}: {why}") from error
            else:
                self._reached = True
                return answer
            await asyncio.sleep(wait)
            attempt += 1

    async def _once(self, url: str, data: bytes, headers: dict[str, str]) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0),  # `rollout.concurrency` is the limit
                timeout=aiohttp.ClientTimeout(total=self._config.timeout),
                trust_env=self._foreign,  # proxies; looking for them at each call takes longer than the call
            )
        async with self._session.post(url, data=data, headers=headers) as response:
            content = await response.read()
            if response.status >= 300:
                raise _refusal(response.status, content, response.headers.get("Retry-After", ""))
        try:
            return json.loads(content)
        except ValueError as error:
            raise EngineError(f"what {self._url} answered is no JSON: {error}") from error

    def _explained(self, refusal: _Refused) -> StepwellError:
        if refusal.passing:
            return EngineError(refusal.message)
        if refusal.status == 400 and refusal.code == "context_length_exceeded":
            return ContextOverflow(refusal.message)
        wrong = EngineError if self._foreign else InvalidRequest  # of strangers nobody knows what they can take
        return wrong(refusal.message)

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
        if self._session is not None:
            await self._session.close()


def _refusal(status: int, content: bytes, retry_after: str) -> _Refused:
    """What an answer says that is none, in OpenAI's shape or another."""
    try:
        told = json.loads(content)
    except ValueError:
        told = None
    error = told.get("error", told) if isinstance(told, dict) else None
    named = error if isinstance(error, dict) else {}
    words = named.get("message") or content.decode(errors="replace")[:_LONGEST_WORDS] or "no words about why"
    pause = float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else None
    return _Refused(status, f"{words} (status {status})", named.get("code"), pause)
