"""When a request is sent again, and how its answer reads; everything is idempotent, so nothing is stored twice."""

import random
from typing import Any, Final, TypeVar

import httpx

from stepwell.client.requests import JSON, Answer, Call, error_of
from stepwell.errors import NoProducer, StepwellError, Unavailable

T = TypeVar("T")

_PASSING: Final = (429, 502, 503, 504)
"""Statuses of troubles that pass."""
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 30.0


class Attempts:
    """How often one call may still be made, and how long to wait before."""

    def __init__(self, base_url: str, retries: int) -> None:
        """Allow `retries` further attempts after the first."""
        self._base_url = base_url
        self._left = retries
        self._made = 0

    def again(self, response: httpx.Response) -> bool:
        """Whether an answer is worth another attempt. That nobody produces is known for sure, and does not pass."""
        passing = response.status_code in _PASSING and self._left > 0
        return passing and not isinstance(refusal(response), NoProducer)

    def wait(self, response: httpx.Response | None = None) -> float:
        """Seconds before the next attempt: what the answer says; else longer each time, by a random part, so that many
        clients do not come back at once."""
        self._left -= 1
        self._made += 1
        after = response.headers.get("retry-after", "") if response is not None else ""
        if after.isdecimal():
            return min(float(after), _LONGEST_WAIT)
        return float(min(_FIRST_WAIT * 2.0**self._made, _LONGEST_WAIT) * random.uniform(0.5, 1.0))

    def failed(self, error: httpx.TransportError) -> float:
        """Seconds before the next attempt after one without an answer.

        Raises:
            Unavailable: it was the last.
        """
        if self._left <= 0:
            raise Unavailable(
                f"the gateway at {self._base_url} does not answer: {error!r}; does it run there?"
            ) from error
        return self.wait()

    def ended(self, response: httpx.Response) -> float:
        """Seconds before the next attempt after a stream that ended, or never began.

        Raises:
            StepwellError: it was refused, and for good.
        """
        if not response.is_success and not self.again(response):
            raise refusal(response)
        return self.wait(response)


def read(call: Call[T], response: httpx.Response) -> T:
    """The answer of a call.

    Raises:
        StepwellError: the gateway refused it.
    """
    if response.is_success:
        whole = call.accept != JSON
        return call.read(Answer(body=response.content, headers=response.headers) if whole else _json(response))
    error = refusal(response)
    instead = call.refused(error)
    if instead is None:
        raise error
    return instead


def refusal(response: httpx.Response) -> StepwellError:
    """The error that an answer is."""
    after = response.headers.get("retry-after", "")
    try:
        answer = _json(response)
    except Unavailable as error:
        return error
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        return error_of(answer["error"], float(after) if after.isdecimal() else None)
    return Unavailable(f"{response.url} answered {response.status_code}, but not as a gateway does")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as damage:
        raise Unavailable(f"{response.url} answered {response.status_code} without JSON: no gateway?") from damage


def headers(api_key: str) -> dict[str, str]:
    """Of every request."""
    key = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return {"content-type": JSON, **key}


def without_v1(base_url: str) -> str:
    """The gateway's own URL, also if somebody gave that for OpenAI's clients."""
    return base_url.rstrip("/").removesuffix("/v1")
