"""Asking a model that may be busy, away or not there at all: what is worth asking again, and when to give up."""

import asyncio
import os
import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pydantic import Field, SecretStr

from stepwell.engines.upstream import Busy, Refused, Upstream, UpstreamConfig
from stepwell.errors import EngineError, EngineTimeout
from stepwell.scoring.base import Unusable

KEY_VARIABLE: Final = "STEPWELL_JUDGE_KEY"
"""Environment variable from which the API key is taken: it need not stand in a file beside the settings."""
_PATH: Final = "/v1/chat/completions"
_LARGEST: Final = 16 * 1024 * 1024
"""Bytes of an answer."""
_LONGEST_PAUSE: Final = 600.0
"""Seconds that are waited at most because a server wants it."""
_DEAD: Final = 8
"""Questions in a row that stay without an answer, after all retries, before nothing more is asked."""


class AskingConfig(UpstreamConfig):
    """Whom to ask, and how patiently."""

    model: str = Field(min_length=1)
    """The model to ask for."""
    api_key: SecretStr = Field(default_factory=lambda: SecretStr(os.environ.get(KEY_VARIABLE, "")))
    """Sent as a bearer token; left out: what the environment variable STEPWELL_JUDGE_KEY holds."""
    timeout: float = Field(default=900.0, gt=0)
    """Seconds in which an answer must be complete, however steadily it arrives."""
    retries: int = Field(default=5, ge=0)
    """How often it is asked again if it does not answer, each time the next of `urls`."""
    backoff: float = Field(default=1.0, ge=0)
    """Seconds before it is asked again, about; twice as long each time, and longer if it says so."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_Choice]


_COMPLETIONS: Final = msgspec.json.Decoder(_Completion)


class Asker:
    """Asks one model at one or more servers. Used from one event loop."""

    def __init__(self, config: AskingConfig) -> None:
        """Nothing is sent yet. Raises ConfigError."""
        self._config = config
        self._upstreams = [Upstream(url, config, largest=_LARGEST) for url in config.urls]
        self._unanswered = 0

    async def ask(self, body: Mapping[str, Any], place: int) -> str:
        """What it says to a request, without its reasoning if the server tells the two apart.

        Args:
            body: The request, in OpenAI's chat completions.
            place: Equal for questions that the same server should get.

        Raises:
            Unusable: it refuses whatever is asked, or has not answered for too long.
            InvalidRequest: it refuses this question.
            EngineError: it does not answer this one.
        """
        pause, asked = self._config.backoff, 0
        while True:
            try:
                words = await self._once(self._upstreams[(place + asked) % len(self._upstreams)], body)
            except Refused as error:
                raise Unusable(_remedy(error)) from error
            except EngineError as error:
                if asked >= self._config.retries:
                    raise self._given_up(error) from error
                await asyncio.sleep(waiting(pause, error))
                pause, asked = pause * 2, asked + 1
            else:
                self._unanswered = 0
                return words

    async def _once(self, upstream: Upstream, body: Mapping[str, Any]) -> str:
        seconds = self._config.timeout
        try:
            async with asyncio.timeout(seconds):
                answer = await upstream.post(_PATH, body, _COMPLETIONS)
        except TimeoutError as error:
            raise EngineTimeout(f"{upstream.url} did not finish its answer within {seconds:g} s (timeout)") from error
        if not answer.choices:
            raise EngineError(f"{upstream.url} answered with nothing")
        return answer.choices[0].message.content or ""

    def _given_up(self, error: EngineError) -> EngineError:
        self._unanswered += 1
        if self._unanswered < _DEAD:
            return error
        return Unusable(f"{self._unanswered} questions in a row had no answer; the last: {error}")

    async def aclose(self) -> None:
        """Close the connections."""
        for upstream in self._upstreams:
            await upstream.aclose()


def waiting(pause: float, error: EngineError) -> float:
    """Seconds before somebody is asked again: about `pause`, so that not all come at once, and what it wants."""
    wanted = error.retry_after if isinstance(error, Busy) else None
    return max(pause * random.uniform(0.5, 1.5), min(wanted or 0.0, _LONGEST_PAUSE))


def _remedy(error: Refused) -> str:
    match error.status:
        case 401 | 403:
            return f"{error} (`api_key` of the judge, or the environment variable {KEY_VARIABLE})"
        case 404:
            return f"{error} (does the server speak OpenAI's chat completions, and has it this `model`?)"
        case _:
            return str(error)
