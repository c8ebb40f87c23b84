"""The laws of environments, checked on every task set in `CASES`.

To put an environment under them, add a `Case`: how to make its task set, and one or more scripts, each a sequence of
assistant messages that brings any of its episodes to an end at the last message of the script.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.environments.lookup import LookupConfig
from stepwell.environments.search_qa import SearchQAConfig
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rollout.env import Environment, Outcome, TaskSet

Script = tuple[Message, ...]


@dataclass(frozen=True)
class Case:
    """A task set and scripts that end its episodes."""

    name: str
    make: Callable[[Path], TaskSet]
    """Given a fresh folder that it may write its data into."""
    scripts: tuple[Script, ...]


def say(text: str) -> Message:
    """An assistant message without a tool call."""
    return Message(role="assistant", content=text)


def call(name: str, **arguments: object) -> Message:
    """An assistant message with one tool call."""
    text = json.dumps(arguments)
    return Message(role="assistant", tool_calls=(ToolCall(id=f"call-{name}", name=name, arguments=text),))


def play(environment: Environment, task_id: str, script: Sequence[Message]) -> list[Outcome]:
    """Reset and apply the script."""
    environment.reset(task_id)
    return [environment.step(action) for action in script]


FACTS = (
    ("Quell", "Marn", "Marn is the capital of Quell. It lies on the river Oss."),
    ("Sorrel", "Tibb", "Tibb is the capital of Sorrel. Its harbour is the largest in the north."),
    ("Vantor", "Ashe", "Ashe is the capital of Vantor, a city of seven hills."),
)


def hotpot_file(folder: Path, count: int = 12) -> Path:
    """A small file of our own in HotpotQA's form: made-up capitals, one paragraph each."""
    context = [[city, [text]] for _, city, text in FACTS]
    rows = [
        {"id": f"row-{number}", "question": f"What is the capital of {land} ({number})?", "answer": city}
        | {"type": "bridge", "level": "easy", "context": context}
        for number, (land, city, _) in enumerate((FACTS * count)[:count])
    ]
    path = folder / "hotpot.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def _search_qa(folder: Path) -> TaskSet:
    return SearchQAConfig(dataset="hotpot", path=hotpot_file(folder), max_turns=3, demonstrations=2).build()


CASES: tuple[Case, ...] = (
    Case(
        "lookup",
        lambda _: LookupConfig(max_turns=3).build(),
        (
            (call("search", item="ab"), call("open", box="cd"), call("answer", colour="ef")),
            (call("search", item="ab"), call("open", text="wrong key"), call("nonsense")),
            (say("I do not know."),),
        ),
    ),
    Case(
        "search_qa",
        _search_qa,
        (
            (call("search", query="capital of Quell"), call("answer", text="Marn")),
            (call("search", query="zzz"), call("nonsense"), call("search", text="wrong key")),
            (say("I do not know."),),
        ),
    ),
)
