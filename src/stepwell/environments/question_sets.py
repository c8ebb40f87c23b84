"""Public sets of search questions, for those who are online (the Hugging Face hub) or have the files.

Nothing of them is part of Stepwell. A row is read in the set's own form, from the hub and from a file alike. Licences:
the seven sets of FlashRAG CC BY-SA 4.0; 2WikiMultihopQA Apache-2.0; MuSiQue CC BY 4.0; WebWalkerQA Apache-2.0; GAIA and
HLE are gated and must not be passed on; xbench is encrypted so that it stays out of training data, and is decrypted in
memory only. Those last four want the live web, and answers that are judged more leniently than by equal texts.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stepwell.environments.corpora import Passage, Question
from stepwell.environments.hub import hub_rows
from stepwell.environments.rows import Row, held_out, read_rows
from stepwell.errors import InvalidRecord, MissingDependency

TEST_SHARE: Final = 0.2
"""Part of a single file that is held out, where the set has a split to train on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: a question, and the passages that come with it."""

    question: Question
    passages: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A set with its splits. Without passages, it needs a retriever or a corpus."""

    train: tuple[Question, ...]
    test: tuple[Question, ...]
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A set: where it is, and what its rows are like."""

    hub: str
    splits: Mapping[str, str]
    """Our split to the hub's."""
    config: str | None = None
    entry: Callable[[Row], Entry] = field(kw_only=True)
    wanted: Callable[[Row], bool] = field(default=lambda _: True, kw_only=True)
    """Rows that are no question for a reader of text are left out."""


def question_set_from_hub(source: Source, revision: str | None = None) -> QuestionSet:
    """Both splits of a set, from the hub; a split that the set does not have is empty.

    Raises:
        MissingDependency: the package `datasets` is not installed, or the hub cannot be reached.
        InvalidRecord: a row has another form, or an id occurs twice.
    """
    read = {
        split: _entries(source, hub_rows(source.hub, source.config, theirs, revision))
        for split, theirs in source.splits.items()
    }
    return _gathered(read.get("train", ()), read.get("test", ()))


def question_set_from_file(source: Source, path: Path) -> QuestionSet:
    """From a folder with `train.jsonl` and `test.jsonl` (one is enough), or from a single file.

    A single file (JSON list or JSON lines) is split by a hash of the question; all of it is for tests if the set has
    nothing to train on.

    Raises:
        MissingDependency: there is no such file.
        InvalidRecord: a row is broken, or an id occurs twice; the message has the line.
    """
    if path.is_dir():
        files = {split: path / f"{split}.jsonl" for split in ("train", "test")}
        if not any(file.exists() for file in files.values()):
            raise MissingDependency(f"{path} has neither train.jsonl nor test.jsonl")
        train, test = (_entries(source, read_rows(file)) if file.exists() else () for file in files.values())
        return _gathered(train, test)
    share = TEST_SHARE if "train" in source.splits else 1.0
    entries = list(_entries(source, read_rows(path)))
    if not entries:
        raise InvalidRecord(f"{path} holds no rows")
    kept = [held_out(entry.question.question, share) for entry in entries]
    return _gathered(
        [entry for entry, test in zip(entries, kept, strict=True) if not test],
        [entry for entry, test in zip(entries, kept, strict=True) if test],
    )


def corpus_from_file(path: Path) -> tuple[Passage, ...]:
    """Passages of Search-R1's form: JSON lines with `contents`, which is `"Title"`, a line break, the text.

    Its own corpus is `PeterJinGo/wiki-18-corpus` on the hub (21 million passages: for a retriever of its own).

    Raises:
        MissingDependency: there is no such file.
        InvalidRecord: a row is broken; the message has the line.
    """
    return tuple(passage_of(row.text("contents")) for row in read_rows(path))


def passage_of(contents: str) -> Passage:
    """A passage from `"Title"`, a line break, the text; without a line break all of it is text."""
    title, line_break, text = contents.partition("\n")
    return Passage(title.strip().strip('"'), text) if line_break else Passage("", contents)


def _entries(source: Source, rows: Iterable[Row]) -> Iterator[Entry]:
    seen: set[str] = set()
    for row in rows:
        if not source.wanted(row):
            continue
        entry = source.entry(row)
        if entry.question.id in seen:
            raise InvalidRecord(f"{row.place}: id {entry.question.id!r} occurs twice")
        seen.add(entry.question.id)
        yield entry


def _gathered(train: Iterable[Entry], test: Iterable[Entry]) -> QuestionSet:
    """Ids of both splits with the split in front, since a set may number each from 0."""
    passages: dict[Passage, None] = {}  # a dictionary as an ordered set: paragraphs recur from row to row
    splits: dict[str, tuple[Question, ...]] = {}
    for split, entries in (("train", train), ("test", test)):
        questions = []
        for entry in entries:
            own = entry.question
            questions.append(Question(f"{split}-{own.id}", own.question, own.answers))
            passages.update(dict.fromkeys(entry.passages))
        splits[split] = tuple(questions)
    return QuestionSet(splits["train"], splits["test"], tuple(passages))


def _texts(row: Row, name: str) -> tuple[str, ...]:
    """A field that is a list of texts, not empty."""
    found = row.fields.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one.strip() for one in found):
        wrong = f"must be a list of texts, got {found!r:.80}" if name in row.fields else "is missing"
        raise InvalidRecord(f"{row.place}: `{name}` {wrong}")
    return tuple(found)


def _flashrag(row: Row) -> Entry:
    return Entry(Question(row.text("id"), row.text("question"), _texts(row, "golden_answers")))


def _two_wiki(row: Row) -> Entry:
    identity = row.text("id" if "id" in row.fields else "_id")
    context = row.fields.get("context")
    return Entry(Question(identity, row.text("question"), (row.text("answer"),)), _context(row, context))


def _context(row: Row, context: Any) -> tuple[Passage, ...]:
    """The paragraphs of HotpotQA's and 2WikiMultihopQA's form."""
    try:
        pairs = (
            zip(context["title"], context["sentences"], strict=True)
            if isinstance(context, dict)
            else [(title, sentences) for title, sentences in context]
        )
        return tuple(Passage(str(title), " ".join(one.strip() for one in sentences)) for title, sentences in pairs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRecord(
            f"{row.place}: context must be [[title, [sentence, …]], …] or {{title: […], sentences: [[…], …]}}"
        ) from error


def _musique(row: Row) -> Entry:
    aliases = row.fields.get("answer_aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise InvalidRecord(f"{row.place}: `answer_aliases` must be a list of texts, got {aliases!r:.80}")
    paragraphs = row.fields.get("paragraphs")
    if not isinstance(paragraphs, list) or not all(isinstance(one, dict) for one in paragraphs):
        raise InvalidRecord(f"{row.place}: `paragraphs` must be a list of objects, got {paragraphs!r:.80}")
    inner = [Row(f"{row.place}, paragraph {number}", one) for number, one in enumerate(paragraphs)]
    passages = tuple(Passage(one.text("title"), one.text("paragraph_text")) for one in inner)
    return Entry(Question(row.text("id"), row.text("question"), (row.text("answer"), *aliases)), passages)


def _answerable(row: Row) -> bool:
    return row.fields.get("answerable") is not False


def _plain(identity: str, question: str, answer: str) -> Callable[[Row], Entry]:
    return lambda row: Entry(Question(row.text(identity), row.text(question), (row.text(answer),)))


def _web_walker(row: Row) -> Entry:
    question = row.text("question")  # the rows have no id
    return Entry(Question(f"{row.text('root_url')} {question}", question, (row.text("answer"),)))


def _xbench(row: Row) -> Entry:
    question, answer = (_decrypted(row, name) for name in ("prompt", "answer"))
    return Entry(Question(row.text("id"), question, (answer,)))


def _decrypted(row: Row, name: str) -> str:
    """Base64 of the text, whose bytes were combined with those of the row's `canary`, again and again, by XOR."""
    key = row.text("canary").encode()
    try:
        hidden = base64.b64decode(row.text(name), validate=True)
        return bytes(byte ^ key[place % len(key)] for place, byte in enumerate(hidden)).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise InvalidRecord(f"{row.place}: `{name}` is not encrypted with its `canary`") from error


def _without_image(row: Row) -> bool:
    return not row.fields.get("image")


def _without_file(row: Row) -> bool:
    return not row.fields.get("file_name")


_TRAIN_TEST: Final = {"train": "train", "test": "test"}
_TRAIN_DEV: Final = {"train": "train", "test": "dev"}
_TRAIN_VALIDATION: Final = {"train": "train", "test": "validation"}
_ONLY_TEST: Final = {"test": "test"}


def _of_flashrag(config: str, splits: Mapping[str, str]) -> Source:
    return Source("RUC-NLPIR/FlashRAG_datasets", splits, config, entry=_flashrag)


SOURCES: Final[Mapping[str, Source]] = {
    "flashrag_nq": _of_flashrag("nq", _TRAIN_TEST),
    "flashrag_triviaqa": _of_flashrag("triviaqa", _TRAIN_TEST),
    "flashrag_popqa": _of_flashrag("popqa", _ONLY_TEST),
    "flashrag_hotpotqa": _of_flashrag("hotpotqa", _TRAIN_DEV),
    "flashrag_2wikimultihopqa": _of_flashrag("2wikimultihopqa", _TRAIN_DEV),
    "flashrag_musique": _of_flashrag("musique", _TRAIN_DEV),
    "flashrag_bamboogle": _of_flashrag("bamboogle", _ONLY_TEST),
    "2wiki": Source("framolfese/2WikiMultihopQA", _TRAIN_VALIDATION, entry=_two_wiki),
    "musique": Source("dgslibisey/MuSiQue", _TRAIN_VALIDATION, entry=_musique, wanted=_answerable),
    "webwalker": Source("callanwu/WebWalkerQA", {"test": "main"}, entry=_web_walker),
    "gaia": Source(
        "gaia-benchmark/GAIA",
        {"test": "validation"},
        "2023_all",
        entry=_plain("task_id", "Question", "Final answer"),
        wanted=_without_file,
    ),
    "xbench": Source("xbench/DeepSearch", {"test": "train"}, entry=_xbench),
    "hle": Source("cais/hle", _ONLY_TEST, entry=_plain("id", "question", "answer"), wanted=_without_image),
}
"""The sets by name. `flashrag_*`, and those after `musique`, have no passages."""
