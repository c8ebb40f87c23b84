import json

import pytest

from stepwell import errors
from stepwell.gateway.problems import (
    STATUS,
    BodyTooLarge,
    BodyTooSlow,
    UnknownModel,
    anthropic_type,
    problem_json,
    problem_of,
)


@pytest.mark.parametrize(
    ("error", "status", "code", "anthropic"),
    [
        (errors.InvalidRequest("x"), 400, "invalid_request", "invalid_request_error"),
        (errors.ContextOverflow("x"), 400, "context_length_exceeded", "invalid_request_error"),
        (errors.Unauthorized("x"), 401, "invalid_api_key", "authentication_error"),
        (errors.Forbidden("x"), 403, "insufficient_scope", "permission_error"),
        (UnknownModel("x"), 404, "model_not_found", "not_found_error"),
        (BodyTooSlow("x"), 408, "body_too_slow", "timeout_error"),
        (errors.Conflict("x"), 409, "conflict", "invalid_request_error"),
        (BodyTooLarge("x"), 413, "body_too_large", "request_too_large"),
        (errors.RateLimited("x"), 429, "rate_limit_exceeded", "rate_limit_error"),
        (errors.EngineError("x"), 503, "engine_error", "overloaded_error"),
        (errors.Unavailable("x"), 503, "unavailable", "overloaded_error"),
        (errors.EngineTimeout("x"), 504, "engine_timeout", "timeout_error"),
        (errors.PoolError("x"), 507, "pool_error", "api_error"),
    ],
)
def test_each_error_has_its_status_and_its_names(error, status, code, anthropic):
    problem = problem_of(error)
    assert (problem.status, problem.code, anthropic_type(problem), problem.message) == (status, code, anthropic, "x")


def test_codes_tell_errors_apart():
    codes = [code for _, _, code in STATUS.values()]
    assert len(set(codes)) == len(codes)


def test_an_unforeseen_error_says_nothing_of_its_inside():
    problem = problem_of(RuntimeError("a secret"))
    assert problem.status == 500
    assert "secret" not in problem_json(problem).decode()


def test_the_place_and_the_time_to_wait_come_along():
    assert problem_of(errors.InvalidRequest("x", param="messages.0")).param == "messages.0"
    assert problem_of(errors.RateLimited("x", retry_after=1.5)).retry_after == 1.5
    assert problem_of(errors.Unavailable("x", retry_after=3)).retry_after == 3
    assert json.loads(problem_json(problem_of(errors.InvalidRequest("x", param="n"))))["error"]["param"] == "n"
