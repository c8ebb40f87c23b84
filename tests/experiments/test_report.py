"""What a report says follows from the results."""

from pathlib import Path

import pytest

from experiments.design import Arm, Case, Claim, Study
from experiments.report import comparisons, report, write_report
from experiments.run import Point
from experiments.store import Store

BETTER = Claim("one is better than the other", "one", "other", ("long", "short"))
STUDY = Study(
    name="own",
    title="One against the other",
    question="Is it better?",
    control="other",
    arms=(Arm("one", "the one", ("budget=7", "budget=8")), Arm("other", "the other", ())),
    cases=(Case("long", ("environment.turns=8",), seeds=3), Case("short", ("environment.turns=2",), seeds=3)),
    claims=(BETTER,),
)


def stored(folder: Path, gain: dict[int, float]) -> Store:
    """Runs of the first case, in which `one` is better by `gain` with each seed."""
    store = Store(folder / "own.jsonl")
    for job in STUDY.jobs():
        if job.case == "long":
            score = 0.5 + (gain[job.seed] if job.arm == "one" else 0.0)
            points = [Point(tokens=n, steps=n, updates=n, seconds=n, score=score) for n in (0, 10)]
            store.put(job, points)
    return store


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ({1: 0.1, 2: 0.11, 3: 0.1}, "holds"),
        ({1: -0.1, 2: -0.11, 3: -0.1}, "**the opposite**"),
        ({1: 0.1, 2: -0.1, 3: 0.1}, "not decided"),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_of_zero(tmp_path: Path, gain: dict[int, float], verdict: str) -> None:
    text = report(STUDY, comparisons(STUDY, stored(tmp_path, gain)))
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {BETTER.text}")]
    assert row.endswith(f" {verdict} |")
    assert "| one against other | long |" in row


def test_a_report_says_what_was_not_run(tmp_path: Path) -> None:
    text = report(STUDY, comparisons(STUDY, stored(tmp_path, {1: 0.1, 2: 0.1, 3: 0.1})))
    assert "Run so far: long: 2 arms, 3 seeds. Not run, or not with enough seeds: short." in text
    assert "Run so far: nothing. Not run, or not with enough seeds: long, short." in report(STUDY, {})


def test_settings_are_told_as_they_are_in_force() -> None:
    assert "| one | the one | `budget=8` |" in report(STUDY, {})


def test_the_page_has_its_pictures_beside_it(tmp_path: Path) -> None:
    page = write_report(STUDY, stored(tmp_path, {1: 0.1, 2: 0.1, 3: 0.1}), tmp_path)
    pictures = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert pictures == ["own_curves.png", "own_differences.png"]
    assert all(f"(images/{name})" in page.read_text(encoding="utf-8") for name in pictures)
