"""A tutor for models that follow no tool protocol: it says when to call a tool, and the model samples the call.

Whatever the gateway records was really sampled by the local engine, with its own log-probabilities. The tutor only
narrows the candidates by a grammar for the length of a call, lets the model say what it likes for some tokens
otherwise, and has it end its turn then.
"""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from stepwell.engines.base import Chunk, Conversation, Engine, Generation
from stepwell.engines.constraint import ConstraintCompiler
from stepwell.rendering.messages import Message
from stepwell.types import TokenSource

QUESTION = "Stepwell asks:"
"""Begins what a person asks in every test conversation; the tutor wants tool results for each."""
DELEGATED = "let a subagent find out"
"""In a question: the tutor wants a subagent called, which gets a question of its own."""
FREE_TOKENS = 16
_LARK = "lark:"
_SPACED = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
"""As models write JSON, and unlike what clients make of it when they send it back."""
_TURN_END = _LARK + 'start: ""'
_CITY = {"city": {"enum": ["Paris", "Oslo", "Lima"]}}
_WORDS = {"type": "string", "pattern": "^[a-z]{1,12}( [a-z]{1,12})?$"}
SUM = "137777"
"""What the harmless command of all shells prints, and nobody who only names it."""
_SUM = {"enum": ["expr 60000 + 77777"]}

HARMLESS: dict[str, dict[str, Any]] = {
    "get_weather": _CITY,
    "final_answer": {"answer": _WORDS},
    "final_result": {"city": _CITY["city"], "degrees": {"type": "integer", "minimum": 0, "maximum": 9}},
    "Bash": {"command": _SUM, "description": _WORDS},
    "bash": {"command": _SUM, "description": _WORDS},
    "exec": {"command": _SUM},
    "exec_command": {"cmd": _SUM},
    "shell_command": {"command": _SUM},
    "shell": {"command": {"enum": [["expr", "60000", "+", "77777"]]}},
}
"""Tools that the clients offer and that may really be called, with the arguments that are admissible."""
_DELEGATION = {
    "description": _WORDS,
    "prompt": {"const": f"{QUESTION} what is the sum?"},
    "subagent_type": {"const": "general-purpose"},
    "run_in_background": {"const": False},
}
DELEGATING: dict[str, dict[str, Any]] = {"Agent": _DELEGATION, "Task": _DELEGATION}
"""Those that start a subagent; called only if the question asks for one."""
_ARGUMENTS = HARMLESS | DELEGATING


class GrammarCompiler(ConstraintCompiler):
    """Also takes a Lark grammar of `llguidance`, marked as such, in the place of a JSON schema."""

    def _compile(self, json_schema: str) -> Any:
        if not json_schema.startswith(_LARK):
            return super()._compile(json_schema)
        from llguidance import LLMatcher  # noqa: PLC0415  # an extra

        matcher = LLMatcher(self._vocabulary, LLMatcher.grammar_from_lark(json_schema.removeprefix(_LARK)), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What one client is to live through."""

    parallel: int = 1
    """Calls in one answer."""
    results: Callable[[Message], int] = lambda message: message.role == "tool"
    """How many tool results a message holds."""
    last: str = ""
    """A tool that the client wants called in the end, in place of a text."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """What the engine was given and sampled for one request."""

    prompt_ids: tuple[int, ...]
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Tutor:
    """An engine around an engine."""

    def __init__(self, engine: Engine, lesson: Lesson) -> None:
        self._engine = engine
        self._lesson = lesson
        self.played: list[Played] = []

    @property
    def model(self) -> str:
        return self._engine.model

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    @property
    def token_source(self) -> TokenSource:
        return self._engine.token_source

    async def healthy(self) -> bool:
        return await self._engine.healthy()

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        """One answer, sampled in one or two parts that follow each other without a seam."""
        played = Played(prompt_ids=tuple(request.prompt_ids.tolist()))
        self.played.append(played)
        parts = self._parts(request)
        for number, part in enumerate(parts):
            last = number + 1 == len(parts)
            async with aclosing(self._engine.generate(_after(part, played))) as chunks:
                async for chunk in chunks:
                    played.response_ids.extend(chunk.token_ids)
                    played.logprobs.extend(chunk.logprobs)
                    ended = last or chunk.finish_reason == "stop"
                    yield chunk if ended else msgspec.structs.replace(chunk, finish_reason=None)
                    if chunk.finish_reason == "stop":
                        return

    def _parts(self, request: Generation) -> list[Generation]:
        conversation, room = request.conversation, request.sampling.max_tokens
        called = self._called(conversation) if conversation else []
        if request.json_schema:
            return [replace(request, json_schema=_one_call(called[0]) if called else request.json_schema)]
        if called:
            return [replace(request, json_schema=_LARK + _calls_grammar(called))]
        if room <= FREE_TOKENS:
            return [request]
        free = replace(request, sampling=replace(request.sampling, max_tokens=FREE_TOKENS))
        return [free, replace(request, sampling=replace(request.sampling, max_tokens=1), json_schema=_TURN_END)]

    def _called(self, conversation: Conversation) -> list[str]:
        """Names of the tools to call now; none if it is time to talk."""
        questions = [m.content for m in conversation.messages if m.role == "user" and QUESTION in m.content]
        callable_now = DELEGATING if any(DELEGATED in question for question in questions) else HARMLESS
        offered = [tool.name for tool in conversation.tools if tool.name in callable_now]
        results = sum(self._lesson.results(message) for message in conversation.messages)
        if results >= len(questions) * self._lesson.parallel:
            return [self._lesson.last] if self._lesson.last in offered else []
        first = next((name for name in offered if name != self._lesson.last), "")
        return [first] * self._lesson.parallel if first else []


def _after(part: Generation, played: Played) -> Generation:
    """The rest of an answer: its prompt ends with what was sampled before."""
    return replace(part, prompt_ids=np.array([*played.prompt_ids, *played.response_ids], np.int32))


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _one_call(name: str) -> str:
    """JSON schema of a call, for answers whose tags the gateway has written already."""
    return json.dumps(_object({"name": {"const": name}, "arguments": _object(_ARGUMENTS[name])}))


def _calls_grammar(names: Sequence[str]) -> str:
    """A few words if the model likes, then one call of each name, as the Hermes format writes them."""
    calls = []
    for name in names:
        schema = json.dumps({"x-guidance": _SPACED, **_object(_ARGUMENTS[name])})
        head = json.dumps('<tool_call>\n{"name": "' + name + '", "arguments": ')
        calls.append(f'{head} %json {schema} "}}\\n</tool_call>"')
    return "start: WORDS " + ' "\\n" '.join(calls) + "\nWORDS: /([A-Za-z]{1,9}[ ,.]){0,3}/\n"
