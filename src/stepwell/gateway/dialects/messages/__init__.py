"""Anthropic's messages."""

from typing import Any, Final

from stepwell.gateway.dialects.base import Answer, ChatCall, StreamWriter
from stepwell.gateway.dialects.messages.parse import parse, refuse_begun
from stepwell.gateway.dialects.messages.write import MessagesWriter, count_json, error_json, whole
from stepwell.gateway.problems import Problem


class MessagesDialect:
    """`POST /messages`: content blocks in and out."""

    name: Final = "messages"
    path: Final = "/messages"

    def parse(self, body: Any, raw: bytes) -> ChatCall:
        """See `Dialect`."""
        return refuse_begun(parse(body, raw))

    def answer(self, call: ChatCall, answers: tuple[Answer, ...]) -> bytes:
        """See `Dialect`."""
        return whole(call, answers[0])

    def writer(self, call: ChatCall) -> StreamWriter:
        """See `Dialect`."""
        return MessagesWriter(call)

    def problem(self, problem: Problem) -> bytes:
        """See `Dialect`."""
        return error_json(problem)


class CountTokens:
    """`POST /messages/count_tokens`: how long a prompt would be. Nothing is sampled, no step is made."""

    path: Final = "/messages/count_tokens"

    def parse(self, body: Any, raw: bytes) -> ChatCall:
        """The call whose prompt is to be counted. Raises InvalidRequest."""
        return parse(body, raw)

    def answer(self, count: int) -> bytes:
        """The body of the answer: `count` prompt tokens."""
        return count_json(count)

    def problem(self, problem: Problem) -> bytes:
        """The body of an error answer."""
        return error_json(problem)
