"""The one error table: which status and code each error class becomes, in the shape of OpenAI's API."""

import json
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from stepwell.errors import (
    Conflict,
    ContextOverflow,
    EngineError,
    InvalidRecord,
    InvalidRequest,
    NotFound,
    PoolError,
    StepwellError,
)


class UnknownModel(NotFound):
    """The call names a model that is not served here."""


class BodyTooLarge(InvalidRequest):
    """The request's body is over the configured limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error as a client sees it."""

    status: int
    """HTTP status."""
    type: str
    code: str
    message: str
    param: str | None = None


_REQUEST: Final = "invalid_request_error"
_SERVER: Final = "server_error"

# The most refined class of an error that is listed here decides.
STATUS: Final[dict[type[StepwellError], tuple[int, str, str]]] = {
    UnknownModel: (404, _REQUEST, "model_not_found"),
    BodyTooLarge: (413, _REQUEST, "body_too_large"),
    ContextOverflow: (400, _REQUEST, "context_length_exceeded"),
    InvalidRequest: (400, _REQUEST, "invalid_request"),
    InvalidRecord: (400, _REQUEST, "invalid_record"),
    NotFound: (404, _REQUEST, "not_found"),
    Conflict: (409, _REQUEST, "conflict"),
    EngineError: (503, _SERVER, "engine_error"),
    PoolError: (507, _SERVER, "pool_error"),
}


def problem_of(error: Exception) -> Problem:
    """What to tell the client; an error that is not Stepwell's own says nothing of its inside."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            status, group, code = STATUS[kind]
            return Problem(status=status, type=group, code=code, message=str(error))
    return Problem(status=500, type=_SERVER, code="internal_error", message="the gateway failed; its log says why")


def problem_json(problem: Problem) -> bytes:
    """The body of an error answer."""
    shape = {"message": problem.message, "type": problem.type, "param": problem.param, "code": problem.code}
    return json.dumps({"error": shape}).encode()


def explain(error: ValidationError) -> str:
    """The first mistake that pydantic found, with the place of it in the body."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "body"
    return f"{place}: {first['msg']}"
