"""OpenAI's responses."""

from typing import Any, Final

from stepwell.gateway.dialects.base import Answer, ChatCall, StreamWriter
from stepwell.gateway.dialects.responses.parse import parse
from stepwell.gateway.dialects.responses.shape import whole
from stepwell.gateway.dialects.responses.stream import ResponsesWriter
from stepwell.gateway.problems import Problem, problem_json


class ResponsesDialect:
    """`POST /responses`: items in and out."""

    name: Final = "responses"
    path: Final = "/responses"

    def parse(self, body: Any, raw: bytes) -> ChatCall:
        """See `Dialect`."""
        return parse(body, raw)

    def answer(self, call: ChatCall, answers: tuple[Answer, ...]) -> bytes:
        """See `Dialect`."""
        return whole(call, answers[0])

    def writer(self, call: ChatCall) -> StreamWriter:
        """See `Dialect`."""
        return ResponsesWriter(call)

    def problem(self, problem: Problem) -> bytes:
        """See `Dialect`."""
        return problem_json(problem)
