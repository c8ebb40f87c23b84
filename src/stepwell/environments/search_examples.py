"""Worked examples of search question answering, with facts of our own choosing, as turns that open a conversation."""

import json
from dataclasses import dataclass
from typing import Final

from stepwell.rendering.messages import Message, ToolCall

PARAMETERS: Final = {"search": "query", "answer": "text"}
"""The name of the one text that each tool takes."""


def asked(question: str) -> Message:
    """The turn that puts a question."""
    return Message(role="user", content=f"Question: {question.strip().rstrip('?')}?")


@dataclass(frozen=True, slots=True)
class _Example:
    question: str
    query: str
    found: str
    answer: str


_NAMED: Final = (
    _Example(
        "who painted the mona lisa",
        "mona lisa painter",
        "Mona Lisa: The Mona Lisa is a portrait painted by Leonardo da Vinci, and it hangs in the Louvre in Paris.",
        "Leonardo da Vinci",
    ),
    _Example(
        "what is the capital of kenya",
        "kenya capital",
        "Kenya: Kenya is a country in East Africa. Its capital and largest city is Nairobi.",
        "Nairobi",
    ),
    _Example(
        "when did the berlin wall fall",
        "berlin wall fall year",
        "Berlin Wall: The wall divided the city from 1961 until it fell on 9 November 1989.",
        "9 November 1989",
    ),
)
_VERDICT: Final = (
    _Example(
        "is the mona lisa in the louvre",
        "mona lisa louvre",
        "Mona Lisa: The Mona Lisa is a portrait painted by Leonardo da Vinci, and it hangs in the Louvre in Paris.",
        "yes",
    ),
    _Example(
        "is kenya in south america",
        "kenya continent",
        "Kenya: Kenya is a country in East Africa. Its capital and largest city is Nairobi.",
        "no",
    ),
    _Example(
        "did the berlin wall fall before 1995",
        "berlin wall fall year",
        "Berlin Wall: The wall divided the city from 1961 until it fell on 9 November 1989.",
        "yes",
    ),
)


def demonstrations(count: int, *, yes_or_no: bool) -> tuple[Message, ...]:
    """The turns of up to three examples; of questions for yes or no, or of others."""
    examples = _VERDICT if yes_or_no else _NAMED
    return tuple(turn for number, example in enumerate(examples[:count]) for turn in _worked(number, example))


def _worked(number: int, example: _Example) -> tuple[Message, ...]:
    search, answer = f"example-{number}-search", f"example-{number}-answer"
    return (
        asked(example.question),
        _call(search, "search", example.query),
        Message(role="tool", content=example.found, tool_call_id=search),
        _call(answer, "answer", example.answer),
    )


def _call(identity: str, name: str, text: str) -> Message:
    arguments = json.dumps({PARAMETERS[name]: text})
    return Message(role="assistant", tool_calls=(ToolCall(id=identity, name=name, arguments=arguments),))
