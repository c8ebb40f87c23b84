"""trackio's own database has what was written."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.tracking.runs import run_in, track

pytest.importorskip("trackio", reason="trackio wants other versions than constraints.txt has: pip install trackio")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of the test's own: trackio reads the variable only once, when it is imported."""
    from trackio import sqlite_storage  # noqa: PLC0415  # optional

    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")


def logged(folder: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(folder / "trackio" / "stepwell.db")) as database:
        return database.execute("SELECT run_name, step FROM metrics ORDER BY step").fetchall()


def test_a_resumed_run_goes_on_under_its_name(tmp_path: Path) -> None:
    from stepwell.cli.tracking.trackio import TrackioConfig  # noqa: PLC0415  # after the check above

    track(TrackioConfig(), tmp_path / "run", 1, 2)
    track(TrackioConfig(), tmp_path / "run", 3)
    title = run_in(tmp_path / "run").title
    assert logged(tmp_path) == [(title, 1), (title, 2), (title, 3)]
