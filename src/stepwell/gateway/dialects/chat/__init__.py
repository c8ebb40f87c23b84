"""OpenAI's chat completions."""

from typing import Any, Final

import msgspec

from stepwell.gateway.dialects.base import Answer, ChatCall, StreamWriter
from stepwell.gateway.dialects.chat.parse import parse
from stepwell.gateway.dialects.chat.write import ChatWriter, whole
from stepwell.gateway.problems import Problem, problem_json


class ChatDialect:
    """`POST /chat/completions`, with the older `functions` and what vLLM and DeepSeek added."""

    name: Final = "chat"
    path: Final = "/chat/completions"

    def parse(self, body: Any, raw: bytes) -> ChatCall:
        """See `Dialect`."""
        return parse(body, raw)

    def answer(self, call: ChatCall, answers: tuple[Answer, ...]) -> bytes:
        """See `Dialect`."""
        return whole(call, answers)

    def writer(self, call: ChatCall) -> StreamWriter:
        """See `Dialect`."""
        return ChatWriter(call)

    def problem(self, problem: Problem) -> bytes:
        """See `Dialect`."""
        return problem_json(problem)


class Tokenize:
    """`POST /tokenize`, as vLLM has it for conversations: how long a prompt would be. No step is made."""

    path: Final = "/tokenize"

    def parse(self, body: Any, raw: bytes) -> ChatCall:
        """The call whose prompt is to be counted. Raises InvalidRequest."""
        return parse(body, raw)

    def answer(self, count: int) -> bytes:
        """The body of the answer: `count` prompt tokens."""
        return msgspec.json.encode({"count": count})

    def problem(self, problem: Problem) -> bytes:
        """The body of an error answer."""
        return problem_json(problem)
