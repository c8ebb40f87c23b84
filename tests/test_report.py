import json
import math
from pathlib import Path

import pytest

from benchmarks.report import Row, main

FAST = Row(name="fast", value=1.0, unit="ms", goal=2.0)
SLOW = Row(name="slow", value=3.0, unit="ms", goal=2.0)
MANY = Row(name="many", value=3.0, unit="steps/s", goal=2.0, better="higher")
PLAIN = Row(name="plain", value=9.0, unit="bytes")


@pytest.mark.parametrize(("row", "met"), [(FAST, True), (SLOW, False), (MANY, True), (PLAIN, True)], ids=str)
def test_a_goal_is_met_on_its_better_side(row: Row, met: bool) -> None:
    assert row.met is met


def test_a_figure_that_is_nan_meets_no_goal() -> None:
    assert not Row(name="x", value=math.nan, unit="ms", goal=1.0).met


def test_the_rows_are_printed_and_written_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main("Speed", lambda quick: [FAST, PLAIN], ["--json", str(tmp_path / "out.json"), "--check"])
    assert "fast" in capsys.readouterr().out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["title"] == "Speed"
    assert [row["name"] for row in written["rows"]] == ["fast", "plain"]


def test_check_exits_naming_what_missed_its_goal() -> None:
    main("Speed", lambda quick: [SLOW], [])
    with pytest.raises(SystemExit, match=r"slow is 3 ms, goal ≤ 2"):
        main("Speed", lambda quick: [FAST, SLOW], ["--check"])


@pytest.mark.parametrize("arguments", [[], ["--quick"]])
def test_the_benchmark_is_told_whether_to_be_quick(arguments: list[str]) -> None:
    seen = []
    main("Speed", lambda quick: seen.append(quick) or [], arguments)
    assert seen == ["--quick" in arguments]
