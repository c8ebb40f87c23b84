"""OpenAI's chat completions."""

from typing import Any, Final

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
