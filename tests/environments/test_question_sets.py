"""Public question sets are read from their own forms, and a broken row is named by its line."""

import base64
import json
from pathlib import Path

import pytest

from stepwell.environments.corpora import Passage
from stepwell.environments.question_sets import (
    SOURCES,
    QuestionSet,
    corpus_from_file,
    passage_of,
    question_set_from_file,
    question_set_from_hub,
)
from stepwell.errors import InvalidRecord, MissingDependency


def _encrypted(text: str, key: str) -> str:
    pairs = zip(text.encode(), (key * len(text.encode())).encode(), strict=False)
    return base64.b64encode(bytes(byte ^ mask for byte, mask in pairs)).decode()


ROWS: dict[str, dict[str, object]] = {
    "flashrag_nq": {"id": "test_0", "question": "Who rules Quell?", "golden_answers": ["Ada", "Ada I"], "metadata": {}},
    "2wiki": {
        "id": "ab1",
        "question": "Who rules Quell?",
        "answer": "Ada",
        "context": {"title": ["Quell", "Ada"], "sentences": [["A land. ", "Ada rules it."], ["A queen."]]},
    },
    "musique": {
        "id": "2hop__1",
        "question": "Who rules Quell?",
        "answer": "Ada",
        "answer_aliases": ["Ada I"],
        "answerable": True,
        "paragraphs": [{"idx": 0, "title": "Quell", "paragraph_text": "Ada rules it.", "is_supporting": True}],
    },
    "webwalker": {"question": "Who rules Quell?", "answer": "Ada", "root_url": "https://quell.example/", "info": {}},
    "gaia": {"task_id": "g1", "Question": "Who rules Quell?", "Final answer": "Ada", "Level": "1", "file_name": ""},
    "xbench": {
        "id": "1",
        "prompt": _encrypted("谁统治 Quell?", "key-1"),
        "answer": _encrypted("Ada", "key-1"),
        "canary": "key-1",
    },
    "hle": {"id": "h1", "question": "Who rules Quell?", "answer": "Ada", "image": "", "answer_type": "exactMatch"},
}


def _written(folder: Path, *rows: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _read(name: str, path: Path) -> QuestionSet:
    return question_set_from_file(SOURCES[name], path)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_each_form_is_a_question_with_its_answers(name: str, tmp_path: Path) -> None:
    read = _read(name, _written(tmp_path, ROWS[name]))
    (question,) = (*read.train, *read.test)
    assert question.question in ("Who rules Quell?", "谁统治 Quell?")
    assert question.answers[0] == "Ada"


def test_all_seven_sets_of_flashrag_share_one_form() -> None:
    flashrag = {name: source for name, source in SOURCES.items() if name.startswith("flashrag_")}
    assert len(flashrag) == 7
    assert {source.hub for source in flashrag.values()} == {"RUC-NLPIR/FlashRAG_datasets"}
    assert {source.splits["test"] for source in flashrag.values()} == {"test", "dev"}


def test_paragraphs_of_a_row_become_passages_once(tmp_path: Path) -> None:
    row = ROWS["2wiki"]
    read = _read("2wiki", _written(tmp_path, row, row | {"id": "ab2", "question": "Who is Ada?"}))
    assert read.passages == (Passage("Quell", "A land. Ada rules it."), Passage("Ada", "A queen."))
    assert _read("musique", _written(tmp_path, ROWS["musique"])).passages == (Passage("Quell", "Ada rules it."),)


def test_the_pairs_that_some_files_have_for_a_context_are_read_too(tmp_path: Path) -> None:
    row = ROWS["2wiki"] | {"context": [["Quell", ["A land.", "Ada rules it."]]]}
    assert _read("2wiki", _written(tmp_path, row)).passages == (Passage("Quell", "A land. Ada rules it."),)


def test_a_set_without_a_training_split_is_all_for_tests(tmp_path: Path) -> None:
    rows = [ROWS["flashrag_nq"] | {"id": str(number), "question": f"Question {number}?"} for number in range(50)]
    path = _written(tmp_path, *rows)
    assert len(_read("flashrag_bamboogle", path).test) == 50
    divided = _read("flashrag_nq", path)
    assert len(divided.train) + len(divided.test) == 50
    assert 0 < len(divided.test) < len(divided.train)


def test_a_folder_keeps_the_splits_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(ROWS["flashrag_nq"]), encoding="utf-8")
    (tmp_path / "test.jsonl").write_text(json.dumps(ROWS["flashrag_nq"]), encoding="utf-8")
    read = _read("flashrag_nq", tmp_path)
    assert [question.id for question in (*read.train, *read.test)] == ["train-test_0", "test-test_0"]


def test_rows_that_no_reader_of_text_can_answer_are_left_out(tmp_path: Path) -> None:
    with_file, with_image = ROWS["gaia"] | {"file_name": "a.png"}, ROWS["hle"] | {"image": "data:image/png"}
    for name, row in (("gaia", with_file), ("hle", with_image), ("musique", ROWS["musique"] | {"answerable": False})):
        with pytest.raises(InvalidRecord, match="holds no rows"):
            _read(name, _written(tmp_path, row))


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("flashrag_nq", {"golden_answers": None}, "`golden_answers` must be a list of texts"),
        ("flashrag_nq", {"golden_answers": []}, "`golden_answers` must be a list of texts"),
        ("flashrag_nq", {"question": ""}, "`question` must be a text"),
        ("2wiki", {"context": {"title": ["a"], "sentences": []}}, "context must be"),
        ("2wiki", {"context": 3}, "context must be"),
        ("musique", {"paragraphs": [{"title": "Quell"}]}, "paragraph 0: `paragraph_text` is missing"),
        ("musique", {"paragraphs": None}, "`paragraphs` must be a list"),
        ("musique", {"answer_aliases": [1]}, "`answer_aliases` must be a list"),
        ("xbench", {"answer": "not base64!"}, "`answer` is not encrypted"),
    ],
)
def test_a_broken_row_is_named_by_its_line(
    name: str, change: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRecord, match=rf"rows.jsonl, line 2.*{complaint}"):
        _read(name, _written(tmp_path, ROWS[name], ROWS[name] | {"id": "other"} | change))


def test_an_id_that_occurs_twice_is_named_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecord, match="line 2: id 'test_0' occurs twice"):
        _read("flashrag_nq", _written(tmp_path, ROWS["flashrag_nq"], ROWS["flashrag_nq"]))


def test_a_file_that_is_absent_is_a_missing_dependency(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="cannot read"):
        _read("flashrag_nq", tmp_path / "absent.jsonl")
    with pytest.raises(MissingDependency, match=r"neither train\.jsonl nor test\.jsonl"):
        _read("flashrag_nq", tmp_path)


def test_the_hub_out_of_reach_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="needs: pip install datasets")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(MissingDependency, match="or give a `path`"):
        question_set_from_hub(SOURCES["flashrag_nq"])


def test_a_corpus_of_search_r1s_form_is_titles_and_texts(tmp_path: Path) -> None:
    path = _written(tmp_path, {"id": "0", "contents": '"Quell"\nA land.\nFar away.'}, {"id": "1", "contents": "Bare."})
    assert corpus_from_file(path) == (Passage("Quell", "A land.\nFar away."), Passage("", "Bare."))
    assert passage_of("") == Passage("", "")
