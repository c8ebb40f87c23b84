"""Sets of mathematics questions, for those who are online (the Hugging Face hub) or have the files.

Nothing of them is part of Stepwell. A row is read in the set's own form, from the hub and from a file alike. Licences:
GSM8K MIT; MATH-500 MIT; OlympiadBench Apache-2.0; the texts of AIME and AMC belong to the Mathematical Association of
America and are for evaluation only.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stepwell.environments.hub import hub_rows
from stepwell.environments.rows import Row, held_out, read_rows
from stepwell.errors import InvalidRecord, MissingDependency

TEST_SHARE: Final = 0.2
"""Part of a single file that is held out, where the set has a split to train on."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with every answer that counts as right."""

    id: str
    question: str
    answers: tuple[str, ...]
    kind: str = ""
    """Subject, if the set has one."""


def _answer(row: Row) -> tuple[str, ...]:
    return (row.text("answer"),)


def _after_hashes(row: Row) -> tuple[str, ...]:
    solution = row.text("answer")
    _, marks, gold = solution.rpartition("####")
    if not marks or not gold.strip():
        raise InvalidRecord(f"{row.place}: `answer` must end with #### and the number")
    return (gold.strip(),)


def _final_answers(row: Row) -> tuple[str, ...]:
    found = row.fields.get("final_answer")
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one.strip() for one in found):
        missing = "is missing" if found is None else f"must be a list of texts, got {found!r:.80}"
        raise InvalidRecord(f"{row.place}: `final_answer` {missing}")
    return (", ".join(found),)  # several are all wanted


@dataclass(frozen=True, slots=True)
class Source:
    """A set: where it is, and what its rows are like."""

    hub: str
    splits: Mapping[str, str]
    """Our split to the hub's."""
    config: str | None = None
    question: str = "problem"
    answers: Callable[[Row], tuple[str, ...]] = field(default=_answer)
    kind: str = ""
    """The field that has the subject."""

    def problem(self, identity: str, row: Row) -> Problem:
        """What a row says. Raises InvalidRecord with its place."""
        kind = row.fields.get(self.kind)
        return Problem(identity, row.text(self.question), self.answers(row), str(kind) if kind else "")


_ONLY_TEST: Final = {"test": "test"}
SOURCES: Final[Mapping[str, Source]] = {
    "gsm8k": Source(
        "openai/gsm8k", {"train": "train", "test": "test"}, config="main", question="question", answers=_after_hashes
    ),
    "math500": Source("HuggingFaceH4/MATH-500", _ONLY_TEST, kind="subject"),
    "aime24": Source("HuggingFaceH4/aime_2024", {"test": "train"}),
    "aime25": Source("math-ai/aime25", _ONLY_TEST),
    "amc23": Source("math-ai/amc23", _ONLY_TEST, question="question"),
    "olympiad": Source(
        "Hothan/OlympiadBench",
        {"test": "train"},
        config="OE_TO_maths_en_COMP",
        question="question",
        answers=_final_answers,
        kind="subfield",
    ),
}
"""The sets by name. Where there is one split only, it is for tests."""

Splits = dict[str, tuple[Problem, ...]]


def problems_from_hub(source: Source, revision: str | None) -> Splits:
    """Both splits of a set, from the hub.

    Raises:
        MissingDependency: the package `datasets` is not installed, or the hub cannot be reached.
        InvalidRecord: a row has another form.
    """
    read = {
        split: tuple(_numbered(source, split, hub_rows(source.hub, source.config, theirs, revision)))
        for split, theirs in source.splits.items()
    }
    return {"train": (), "test": ()} | read


def problems_from_file(source: Source, path: Path) -> Splits:
    """From a folder with `train.jsonl` and `test.jsonl` (one is enough), or from a single file.

    A single file (JSON list or JSON lines) is split by a hash of the question; all of it is for tests if the set has
    nothing to train on.

    Raises:
        MissingDependency: there is no such file.
        InvalidRecord: a row is broken; the message has its line.
    """
    if path.is_dir():
        files = {split: path / f"{split}.jsonl" for split in ("train", "test")}
        if not any(file.exists() for file in files.values()):
            raise MissingDependency(f"{path} has neither train.jsonl nor test.jsonl")
        return {
            split: tuple(_numbered(source, split, read_rows(file))) if file.exists() else ()
            for split, file in files.items()
        }
    share = TEST_SHARE if "train" in source.splits else 1.0
    problems = tuple(_numbered(source, "row", read_rows(path)))
    if not problems:
        raise InvalidRecord(f"{path} holds no rows")
    test = {problem.id for problem in problems if held_out(problem.question, share)}
    return {
        "train": tuple(problem for problem in problems if problem.id not in test),
        "test": tuple(problem for problem in problems if problem.id in test),
    }


def _numbered(source: Source, prefix: str, rows: Iterator[Row]) -> Iterator[Problem]:
    return (source.problem(f"{prefix}-{number}", row) for number, row in enumerate(rows))
