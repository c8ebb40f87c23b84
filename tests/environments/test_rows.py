"""Rows of files: each mistake is named by its line."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.environments.rows import Row, held_out, read_rows
from stepwell.errors import InvalidRecord, MissingDependency

ROWS = [{"question": "a?", "n": 1}, {"question": "b?"}]


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_list_and_lines_hold_the_same_rows(tmp_path: Path) -> None:
    lines = "\n\n".join(json.dumps(row) for row in ROWS) + "\n"
    assert [row.fields for row in read_rows(written(tmp_path, lines))] == ROWS
    assert [row.fields for row in read_rows(written(tmp_path, json.dumps(ROWS)))] == ROWS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n\n{"a": \n', "line 3: not JSON"),
        ('{"a": 1}\n7\n', "line 2: expected an object, got int"),
        ('[{"a": 1}, []]', "row 1: expected an object, got list"),
        ('[{"a": 1},', "is not a JSON list"),
        ("[" * 100_000, "is not a JSON list"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "line 2: not UTF-8"),
    ],
)
def test_a_broken_row_is_named_by_its_place(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        list(read_rows(written(tmp_path, text)))


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="No such file"):
        list(read_rows(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"answer": "x"}, "`question` is missing; its fields are answer"),
        ({"question": " "}, "`question` must be a text that is not empty"),
        ({"question": ["x"]}, r"`question` must be a text that is not empty, got \['x'\]"),
        ({"question": True}, "`question` must be a text that is not empty, got True"),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRecord, match=f"line 7: {message}"):
        Row("line 7", fields).text("question")


def test_a_whole_number_may_stand_for_a_text() -> None:
    assert Row("line 1", {"answer": 204}).text("answer") == "204"


@given(st.text())
def test_what_is_held_out_grows_with_the_share(text: str) -> None:
    assert not held_out(text, 0.0)
    assert held_out(text, 1.0)
    assert held_out(text, 0.5) or not held_out(text, 0.2)
