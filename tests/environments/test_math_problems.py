"""Sets of questions are read in their own form; each mistake is named by its line."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepwell.environments.math_problems import SOURCES, Problem, problems_from_file, problems_from_hub
from stepwell.errors import InvalidRecord, MissingDependency

ROWS: Mapping[str, Mapping[str, object]] = {
    "gsm8k": {"question": "How much is 2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"},
    "math500": {"problem": "What is $2+2$?", "solution": r"\boxed{4}", "answer": "4", "subject": "Algebra", "level": 1},
    "aime24": {"id": 60, "problem": "What is 2 + 2?", "solution": "", "answer": "004"},
    "aime25": {"problem": "What is 2 + 2?", "answer": 4},
    "amc23": {"id": 0, "question": "What is 2 + 2?", "answer": "4.0"},
    "olympiad": {"question": "What is 2 + 2?", "final_answer": ["4"], "subfield": "Algebra", "error": None},
}
GOLDS = {"aime24": "004", "amc23": "4.0"}
KINDS = {"math500": "Algebra", "olympiad": "Algebra"}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SOURCES)
def test_a_row_of_each_set_is_read_in_its_own_form(name: str, tmp_path: Path) -> None:
    row, source = ROWS[name], SOURCES[name]
    read = problems_from_file(source, lines(tmp_path / "rows.jsonl", row))
    question = str(row[source.question])
    assert (*read["train"], *read["test"]) == (
        Problem("row-0", question, (GOLDS.get(name, "4"),), KINDS.get(name, "")),
    )


NEEDED = [
    (name, key) for name, row in ROWS.items() for key in ("question", "problem", "answer", "final_answer") if key in row
]


@pytest.mark.parametrize(("name", "removed"), NEEDED)
def test_a_missing_field_is_named_with_its_line(name: str, removed: str, tmp_path: Path) -> None:
    broken = {key: value for key, value in ROWS[name].items() if key != removed}
    with pytest.raises(InvalidRecord, match=rf"line 2: `{removed}` is missing"):
        problems_from_file(SOURCES[name], lines(tmp_path / "rows.jsonl", ROWS[name], broken))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("gsm8k", {"answer": "4"}, "`answer` must end with ####"),
        ("gsm8k", {"answer": "so\n#### "}, "`answer` must end with ####"),
        ("olympiad", {"final_answer": []}, "`final_answer` must be a list of texts"),
        ("olympiad", {"final_answer": [4]}, "`final_answer` must be a list of texts"),
    ],
)
def test_an_answer_of_another_form_is_named_with_its_line(
    name: str, fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRecord, match=f"line 1: {message}"):
        problems_from_file(SOURCES[name], lines(tmp_path / "rows.jsonl", {**ROWS[name], **fields}))


def test_several_final_answers_are_all_wanted(tmp_path: Path) -> None:
    row = {**ROWS["olympiad"], "final_answer": ["1", "2"], "is_multiple_answer": True}
    (problem,) = problems_from_file(SOURCES["olympiad"], lines(tmp_path / "rows.jsonl", row))["test"]
    assert problem.answers == ("1, 2",)


def test_a_file_is_split_by_its_questions_and_a_set_for_tests_is_not_trained_on(tmp_path: Path) -> None:
    rows = [{**ROWS["gsm8k"], "question": f"What is {n} + 2?"} for n in range(100)]
    read = problems_from_file(SOURCES["gsm8k"], lines(tmp_path / "rows.jsonl", *rows))
    assert 5 < len(read["test"]) < 40
    assert {*read["train"]}.isdisjoint(read["test"])
    fewer = problems_from_file(SOURCES["gsm8k"], lines(tmp_path / "rows.jsonl", *rows[:50]))
    assert set(fewer["test"]) <= set(read["test"])
    assert problems_from_file(SOURCES["aime25"], lines(tmp_path / "rows.jsonl", ROWS["aime25"]))["train"] == ()


def test_a_folder_has_a_file_for_each_split(tmp_path: Path) -> None:
    lines(tmp_path / "test.jsonl", ROWS["gsm8k"])
    read = problems_from_file(SOURCES["gsm8k"], tmp_path)
    assert ([one.id for one in read["train"]], [one.id for one in read["test"]]) == ([], ["test-0"])
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(MissingDependency, match=r"neither train.jsonl nor test.jsonl"):
        problems_from_file(SOURCES["gsm8k"], tmp_path)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecord, match="holds no rows"):
        problems_from_file(SOURCES["gsm8k"], lines(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("name", SOURCES)
def test_the_hub_is_asked_for_the_sets_own_splits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(hub: str, config: str | None, *, split: str, revision: str | None) -> list[Mapping[str, object]]:
        asked.append((hub, config, split, revision))
        return [ROWS[name]]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    source = SOURCES[name]
    read = problems_from_hub(source, "abc")
    assert asked == [(source.hub, source.config, theirs, "abc") for theirs in source.splits.values()]
    assert [one.id for split in read.values() for one in split] == [f"{split}-0" for split in source.splits]


@pytest.mark.parametrize("reason", [OSError("offline"), ValueError("no such set"), None])
def test_a_hub_out_of_reach_is_told_with_the_remedy(reason: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*arguments: object, **named: object) -> object:
        assert reason is not None
        raise reason

    monkeypatch.setitem(sys.modules, "datasets", reason and SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(MissingDependency, match="`path`"):
        problems_from_hub(SOURCES["gsm8k"], None)
