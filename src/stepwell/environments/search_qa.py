"""Answering questions by searching: the agent may search, reads what was found, and answers.

Two tools with one text each, so that a model with no tool-calling habit can play it line by line. The conversation is
the whole state: two environments share the passages and nothing else. Only the last step earns a reward, in two parts:
`answer` (exact match or F1) and `format` (it searched, then answered).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from stepwell.environments.corpora import Corpus, Passage, Question, hotpot_from_hub, hotpot_rows, wikipedia_corpus
from stepwell.environments.retrieval import SearchIndex, window
from stepwell.environments.toolcalls import text_argument, text_tool
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Outcome, TaskSetConfig
from stepwell.scoring.answers import contains_answer, exact_match, f1

TEST_SHARE: Final = 0.2
"""Part of the questions that is held out, chosen by a hash of the question."""

_INSTRUCTIONS: Final = (
    "Answer the question in as few words as possible. Write one line per turn: "
    "`search: words to look for` to read about it, or `answer: your answer` to finish."
)


_PARAMETER: Final = {"search": "query", "answer": "text"}
_TOOLS: Final = (
    text_tool("search", "query", "Find passages that have these words."),
    text_tool("answer", "text", "Give the final answer and finish."),
)


class SearchQAConfig(TaskSetConfig):
    """Settings of the search question answering environment."""

    dataset: Literal["nq", "boolq", "hotpot"] = "nq"
    """`nq`: short answers; `boolq`: yes or no; `hotpot`: questions that need two paragraphs."""
    path: Path | None = None
    """For `hotpot` only: file of distractor rows (JSON list or JSON lines); None asks the Hugging Face hub."""
    max_turns: int = Field(default=3, ge=1)
    """Assistant messages after which the episode is truncated."""
    passages: int = Field(default=1, ge=1)
    """Passages that a search returns at most."""
    passage_words: int = Field(default=60, ge=1)
    """Words that are shown of a passage: the stretch that matches the query best."""
    demonstrations: int = Field(default=0, ge=0, le=3)
    """Worked examples that open the conversation as earlier turns."""
    answer_metric: Literal["em", "f1"] = "em"
    """What the answer earns: exact match (0 or 1) or token F1 (0..1)."""
    answer_weight: float = Field(default=1.0, ge=0)
    """Multiplies the answer's score; reward part `answer`."""
    format_weight: float = Field(default=0.0, ge=0)
    """Earned by an answer that follows a search of an earlier turn; reward part `format`."""
    answerable_only: bool = False
    """Keep only the questions whose answer stands in what searching for the question itself shows; for `nq` only."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dataset != "hotpot" and self.path is not None:
            raise ValueError("`path` is for `dataset: hotpot`")
        if self.answerable_only and self.dataset != "nq":
            raise ValueError("`answerable_only` is for `dataset: nq`")
        return self

    def build(self) -> "SearchQA":
        """The task set with these settings; see `SearchQA` for what it may raise."""
        return SearchQA(self)


@dataclass(frozen=True, slots=True)
class _Library:
    """What all environments of a task set share, and none changes."""

    config: SearchQAConfig
    questions: Mapping[str, Question]
    index: SearchIndex

    def look_up(self, query: str) -> str:
        """The text that the search tool answers."""
        found = self.index.search(query, self.config.passages)
        return "\n".join(self._show(passage, query) for passage in found) or "No result."

    def score(self, prediction: str, answers: Sequence[str]) -> float:
        """The reward part `answer`."""
        metric = exact_match if self.config.answer_metric == "em" else f1
        return self.config.answer_weight * metric(prediction, answers)

    def _show(self, passage: Passage, query: str) -> str:
        text = window(passage.text, query, self.config.passage_words)
        return f"{passage.title}: {text}" if passage.title else text


class SearchQA:
    """The task set: questions of a data set, split by a hash, over one shared search index."""

    name: Final = "search_qa"

    def __init__(self, config: SearchQAConfig) -> None:
        """Read the data; the Wikipedia sets are fetched at the first use.

        Raises:
            MissingDependency: the data or bm25s cannot be had.
            InvalidRecord: a row of `config.path` is broken.
        """
        corpus = _read(config)
        questions = {question.id: question for question in corpus.questions}
        self._library = _Library(config, questions, SearchIndex(corpus.passages))
        if config.answerable_only:
            questions = {key: question for key, question in questions.items() if self._answerable(question)}
        self._splits: dict[str, tuple[str, ...]] = {
            "train": tuple(key for key, question in questions.items() if not _held_out(question)),
            "test": tuple(key for key, question in questions.items() if _held_out(question)),
        }

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of the questions of `train` or `test`, in the order of the data.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in self._splits:
            raise InvalidRequest(f"no split {split!r}; use {' or '.join(self._splits)}")
        return self._splits[split]

    def make(self) -> "SearchQAEnvironment":
        """A fresh environment over the shared passages."""
        return SearchQAEnvironment(self._library)

    def _answerable(self, question: Question) -> bool:
        return contains_answer(self._library.look_up(question.question), question.answers)


class SearchQAEnvironment:
    """One episode of search question answering."""

    def __init__(self, library: _Library) -> None:
        """Made by `SearchQA.make`."""
        self._library = library
        self._question: Question | None = None
        self._turns = 0
        self._searched = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """`search(query)` and `answer(text)`."""
        return _TOOLS

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Ask the question `task_id`, after the instructions and the demonstrations.

        Raises:
            NotFound: there is no such question.
        """
        question = self._library.questions.get(task_id)
        if question is None:
            raise NotFound(f"no question {task_id!r} in {self._library.config.dataset}")
        self._question, self._turns, self._searched = question, 0, False
        shown = _demonstrations(self._library.config)
        return (Message(role="system", content=_INSTRUCTIONS), *shown, _user(question.question))

    def step(self, action: Message) -> Outcome:
        """Run the tool calls of the message in order, up to an answer; no call at all is an ending without reward.

        Raises:
            InvalidRequest: no episode is running.
        """
        if self._question is None:
            raise InvalidRequest("no episode is running: call reset first")
        self._turns += 1
        if not action.tool_calls:
            return self._end(Outcome(terminated=True, reward_parts=_parts(0.0, 0.0)))
        results: list[Message] = []
        searched = False
        for call in action.tool_calls:
            text = text_argument(call, _PARAMETER)
            if text is not None and call.name == "answer":
                return self._end(self._answered(self._question, text))
            searched = searched or text is not None
            content = self._library.look_up(text) if text is not None else _mistake(call)
            results.append(Message(role="tool", content=content, tool_call_id=call.id))
        # Only now: a message that searches and answers at once did not read what it found.
        self._searched = self._searched or searched
        if self._turns >= self._library.config.max_turns:
            return self._end(Outcome(truncated=True, reward_parts=_parts(0.0, 0.0)))
        return Outcome(messages=tuple(results))

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._question, self._turns, self._searched

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        self._question, self._turns, self._searched = snapshot

    def _answered(self, question: Question, text: str) -> Outcome:
        well_formed = self._library.config.format_weight if self._searched else 0.0
        answer = self._library.score(text, question.answers)
        return Outcome(terminated=True, reward_parts=_parts(answer, well_formed))

    def _end(self, outcome: Outcome) -> Outcome:
        self._question = None
        return outcome


def _read(config: SearchQAConfig) -> Corpus:
    if config.dataset != "hotpot":
        return wikipedia_corpus(config.dataset)
    return hotpot_rows(config.path) if config.path is not None else hotpot_from_hub()


def _held_out(question: Question) -> bool:
    digest = hashlib.sha256(question.question.encode()).digest()
    return int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64


def _parts(answer: float, well_formed: float) -> tuple[tuple[str, float], ...]:
    return (("answer", answer), ("format", well_formed))


def _mistake(call: ToolCall) -> str:
    if call.name not in _PARAMETER:
        return f"Error: there is no tool {call.name[:40]!r}; use search or answer."
    return f"Error: {call.name} takes one text called {_PARAMETER[call.name]}."


def _user(question: str) -> Message:
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


def _demonstrations(config: SearchQAConfig) -> tuple[Message, ...]:
    examples = _VERDICT if config.dataset == "boolq" else _NAMED
    turns = (
        turn for number, example in enumerate(examples[: config.demonstrations]) for turn in _worked(number, example)
    )
    return tuple(turns)


def _worked(number: int, example: _Example) -> tuple[Message, ...]:
    search, answer = f"example-{number}-search", f"example-{number}-answer"
    return (
        _user(example.question),
        _call(search, "search", example.query),
        Message(role="tool", content=example.found, tool_call_id=search),
        _call(answer, "answer", example.answer),
    )


def _call(identity: str, name: str, text: str) -> Message:
    arguments = json.dumps({_PARAMETER[name]: text})
    return Message(role="assistant", tool_calls=(ToolCall(id=identity, name=name, arguments=arguments),))
