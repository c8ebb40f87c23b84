"""The one error table: which status and code each error class becomes, in OpenAI's words and in Anthropic's; and what
is logged of it."""

import json
import logging
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from starlette.responses import Response

from stepwell.errors import (
    Conflict,
    ContextOverflow,
    EngineError,
    EngineTimeout,
    Forbidden,
    ForkRefused,
    InvalidRecord,
    InvalidRequest,
    NoProducer,
    NotFound,
    PoolError,
    RateLimited,
    StepwellError,
    Unauthorized,
    Unavailable,
)

_log: Final = logging.getLogger(__name__)


class UnknownModel(NotFound):
    """The call names a model that is not served here."""


class BodyTooLarge(InvalidRequest):
    """The request's body is over the configured limit."""


class BodyTooSlow(InvalidRequest):
    """The request's body did not arrive in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error as a client sees it."""

    status: int
    """HTTP status."""
    type: str
    """Its family in OpenAI's API; Anthropic's follows from the status."""
    code: str
    """What exactly it is: also the reason that is counted."""
    message: str
    param: str | None = None
    """Place of the mistake in the request's body, such as `messages.0.role`."""
    retry_after: float | None = None
    """Seconds until it makes sense to ask again."""


_REQUEST: Final = "invalid_request_error"
_SERVER: Final = "server_error"

# The most refined class of an error that is listed here decides.
STATUS: Final[dict[type[StepwellError], tuple[int, str, str]]] = {
    UnknownModel: (404, _REQUEST, "model_not_found"),
    BodyTooLarge: (413, _REQUEST, "body_too_large"),
    BodyTooSlow: (408, _REQUEST, "body_too_slow"),
    ContextOverflow: (400, _REQUEST, "context_length_exceeded"),
    InvalidRequest: (400, _REQUEST, "invalid_request"),
    InvalidRecord: (400, _REQUEST, "invalid_record"),
    Unauthorized: (401, "authentication_error", "invalid_api_key"),
    Forbidden: (403, "permission_error", "insufficient_scope"),
    NotFound: (404, _REQUEST, "not_found"),
    ForkRefused: (409, _REQUEST, "fork_refused"),
    Conflict: (409, _REQUEST, "conflict"),
    RateLimited: (429, "rate_limit_error", "rate_limit_exceeded"),
    EngineTimeout: (504, _SERVER, "engine_timeout"),
    EngineError: (503, _SERVER, "engine_error"),
    Unavailable: (503, _SERVER, "unavailable"),
    NoProducer: (503, _SERVER, "no_producer"),
    PoolError: (507, _SERVER, "pool_error"),
}

# What Anthropic's API calls the errors of each status; all others are by their hundred.
_ANTHROPIC: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def problem_of(error: Exception) -> Problem:
    """What to tell the client; an error that is not Stepwell's own says nothing of its inside."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            status, family, code = STATUS[kind]
            return Problem(
                status=status,
                type=family,
                code=code,
                message=str(error),
                param=error.param if isinstance(error, InvalidRequest) else None,
                retry_after=error.retry_after if isinstance(error, RateLimited | Unavailable) else None,
            )
    return Problem(status=500, type=_SERVER, code="internal_error", message="the gateway failed; its log says why")


def problem_json(problem: Problem) -> bytes:
    """The body of an error answer in OpenAI's shape, which is also that of our own routes."""
    shape = {"message": problem.message, "type": problem.type, "param": problem.param, "code": problem.code}
    return json.dumps({"error": shape}).encode()


def anthropic_type(problem: Problem) -> str:
    """The family of a problem in Anthropic's API."""
    return _ANTHROPIC.get(problem.status, "invalid_request_error" if problem.status < 500 else "api_error")


def explain(error: ValidationError) -> str:
    """The first mistake that pydantic found, with the place of it in the body."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "body"
    return f"{place}: {first['msg']}"


def problem_response(problem: Problem, body: bytes) -> Response:
    """An error answer."""
    headers = {} if problem.retry_after is None else {"retry-after": str(max(1, round(problem.retry_after)))}
    if problem.status == 409:  # which SDKs would ask again for, though a fact stays what it is
        headers["x-should-retry"] = "false"
    return Response(body, problem.status, headers=headers, media_type="application/json")


def logged(error: Exception, what: str) -> Problem:
    """What to tell the client; a failure of ours is logged with its traceback, a pause or a drain is none."""
    problem = problem_of(error)
    if isinstance(error, Unavailable):
        _log.warning("%s refused: %s", what, error)
    elif problem.status >= 500:
        _log.error("%s failed", what, exc_info=error)
    return problem
