"""Answering questions by searching: the agent may search, reads what was found, and answers.

Two tools with one text each, so that a model with no tool-calling habit can play it line by line. The conversation is
the whole state: two environments share the passages and nothing else. Only the last step earns a reward, in two parts:
`answer` (exact match or F1) and `format` (it searched, then answered).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from stepwell.environments.corpora import Corpus, Passage, Question, hotpot_from_hub, hotpot_rows, wikipedia_corpus
from stepwell.environments.question_sets import (
    SOURCES,
    QuestionSet,
    corpus_from_file,
    question_set_from_file,
    question_set_from_hub,
)
from stepwell.environments.remote_index import RemoteIndex
from stepwell.environments.retrieval import Index, SearchIndex, window
from stepwell.environments.search_examples import PARAMETERS, asked, demonstrations
from stepwell.environments.toolcalls import text_argument, text_tool
from stepwell.errors import ConfigError, InvalidRequest, NotFound
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Outcome, TaskSetConfig
from stepwell.scoring.answers import contains_answer, exact_match, f1

TEST_SHARE: Final = 0.2
"""Part of the questions that is held out, chosen by a hash of the question."""
_OWN_SETS: Final = ("nq", "boolq", "hotpot")
"""Read by `corpora`; they have passages, and one split, which is divided."""

_NOTHING: Final = (("em", 0.0), ("f1", 0.0))
"""What an episode without an answer measures."""
_INSTRUCTIONS: Final = (
    "Answer the question in as few words as possible. Write one line per turn: "
    "`search: words to look for` to read about it, or `answer: your answer` to finish."
)


_TOOLS: Final = (
    text_tool("search", "query", "Find passages that have these words."),
    text_tool("answer", "text", "Give the final answer and finish."),
)


class SearchQAConfig(TaskSetConfig):
    """Settings of the search question answering environment."""

    dataset: str = "nq"
    """`nq`: short answers; `boolq`: yes or no; `hotpot`: questions that need two paragraphs; or a public set by its
    name in `question_sets.SOURCES`."""
    path: Path | None = None
    """File of rows in the set's form (JSON list or JSON lines), or a folder with `train.jsonl` and `test.jsonl`; None
    asks the Hugging Face hub. Not for `nq` and `boolq`; for `hotpot`, a file of distractor rows."""
    revision: str | None = None
    """Commit or tag of the set on the hub; None takes the newest. Not for `nq`, `boolq`, `hotpot`."""
    corpus: Path | None = None
    """File of passages to search, of Search-R1's form; None searches those that come with the questions."""
    retriever: str | None = Field(default=None, pattern="^https?://")
    """URL of a server that speaks Search-R1's protocol, such as `http://127.0.0.1:8000/retrieve`, to search instead."""
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
        known = (*_OWN_SETS, *SOURCES)
        if self.dataset not in known:
            raise ValueError(f"no data set {self.dataset!r}; use one of {', '.join(known)}")
        if self.dataset in ("nq", "boolq") and self.path is not None:
            raise ValueError(f"`path` is not for `dataset: {self.dataset}`, which is fetched from the package index")
        if self.dataset in _OWN_SETS and self.revision is not None:
            raise ValueError(f"`revision` is not for `dataset: {self.dataset}`")
        if self.corpus is not None and self.retriever is not None:
            raise ValueError("`corpus` and `retriever` exclude each other")
        if self.answerable_only and (self.dataset != "nq" or self.retriever is not None):
            raise ValueError("`answerable_only` is for `dataset: nq` without a `retriever`")
        return self

    def build(self) -> "SearchQA":
        """The task set with these settings; see `SearchQA` for what it may raise."""
        return SearchQA(self)


@dataclass(frozen=True, slots=True)
class _Library:
    """What all environments of a task set share, and none changes."""

    config: SearchQAConfig
    questions: Mapping[str, Question]
    index: Index

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
            InvalidRecord: a row of `config.path` or `config.corpus` is broken.
            ConfigError: the set has no passages, and the settings name none.
        """
        read = _read(config)
        questions = {question.id: question for question in (*read.train, *read.test)}
        self._library = _Library(config, questions, _index(config, read))
        kept = self._answerable if config.answerable_only else (lambda _: True)
        self._splits: dict[str, tuple[str, ...]] = {
            split: tuple(question.id for question in of if kept(question))
            for split, of in (("train", read.train), ("test", read.test))
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
        config = self._library.config
        shown = demonstrations(config.demonstrations, yes_or_no=config.dataset == "boolq")
        return (Message(role="system", content=_INSTRUCTIONS), *shown, asked(question.question))

    def step(self, action: Message) -> Outcome:
        """Run the tool calls of the message in order, up to an answer; no call at all is an ending without reward.

        Raises:
            InvalidRequest: no episode is running.
        """
        if self._question is None:
            raise InvalidRequest("no episode is running: call reset first")
        self._turns += 1
        if not action.tool_calls:
            return self._end(Outcome(terminated=True, reward_parts=_parts(0.0, 0.0), measured=_NOTHING))
        results: list[Message] = []
        searched, invalid = False, 0
        for call in action.tool_calls:
            text = text_argument(call, PARAMETERS)
            if text is not None and call.name == "answer":
                return self._end(replace(self._answered(self._question, text), invalid_calls=invalid))
            searched, invalid = searched or text is not None, invalid + (text is None)
            content = self._library.look_up(text) if text is not None else _mistake(call)
            results.append(Message(role="tool", content=content, tool_call_id=call.id))
        # Only now: a message that searches and answers at once did not read what it found.
        self._searched = self._searched or searched
        if self._turns >= self._library.config.max_turns:
            nothing = Outcome(truncated=True, reward_parts=_parts(0.0, 0.0), measured=_NOTHING, invalid_calls=invalid)
            return self._end(nothing)
        return Outcome(messages=tuple(results), invalid_calls=invalid)

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._question, self._turns, self._searched

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        self._question, self._turns, self._searched = snapshot

    def _answered(self, question: Question, text: str) -> Outcome:
        well_formed = self._library.config.format_weight if self._searched else 0.0
        answer = self._library.score(text, question.answers)
        measured = (("em", exact_match(text, question.answers)), ("f1", f1(text, question.answers)))
        return Outcome(terminated=True, reward_parts=_parts(answer, well_formed), measured=measured)

    def _end(self, outcome: Outcome) -> Outcome:
        self._question = None
        return outcome


def _read(config: SearchQAConfig) -> QuestionSet:
    source = SOURCES.get(config.dataset)
    if source is not None:
        if config.path is not None:
            return question_set_from_file(source, config.path)
        return question_set_from_hub(source, config.revision)
    corpus = _own_set(config)
    return QuestionSet(
        tuple(question for question in corpus.questions if not _held_out(question)),
        tuple(question for question in corpus.questions if _held_out(question)),
        corpus.passages,
    )


def _own_set(config: SearchQAConfig) -> Corpus:
    if config.dataset != "hotpot":
        return wikipedia_corpus(config.dataset)
    return hotpot_rows(config.path) if config.path is not None else hotpot_from_hub()


def _index(config: SearchQAConfig, read: QuestionSet) -> Index:
    if config.retriever is not None:
        return RemoteIndex(config.retriever)
    passages = read.passages if config.corpus is None else corpus_from_file(config.corpus)
    if not passages:
        raise ConfigError(f"{config.dataset} comes without passages: set `retriever` to a URL, or `corpus` to a file")
    return SearchIndex(passages)


def _held_out(question: Question) -> bool:
    digest = hashlib.sha256(question.question.encode()).digest()
    return int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64


def _parts(answer: float, well_formed: float) -> tuple[tuple[str, float], ...]:
    return (("answer", answer), ("format", well_formed))


def _mistake(call: ToolCall) -> str:
    if call.name not in PARAMETERS:
        return f"Error: there is no tool {call.name[:40]!r}; use search or answer."
    return f"Error: {call.name} takes one text called {PARAMETERS[call.name]}."
