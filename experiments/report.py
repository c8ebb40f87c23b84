"""A study's report: everything in it follows from the stored results, but for what we make of them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from experiments.compare import Compared
from experiments.design import Case, Claim, Measure, Study
from experiments.plots import plot_curves, plot_differences
from experiments.store import Store
from stepwell.intervals import Interval, interval

DOCS: Final = Path(__file__).parents[1] / "docs" / "experiments"
_WORDS: Final[Mapping[Measure, str]] = {
    "tokens": "mean score over tokens",
    "updates": "mean score over updates",
    "seconds": "mean score over CPU time",
    "end": "score at the end",
}
_VERDICTS: Final = {1: "holds", 0: "not decided", -1: "**the opposite**"}
_FEWEST: Final = 3
"""Seeds of which a case is told."""
_ENDS: Final = ("tokens", "steps", "updates", "seconds")
_MEANS: Final = ("clipped", "alike", "explained", "ratio")


def write_report(study: Study, store: Store, folder: Path = DOCS) -> Path:
    """Write the page and its pictures; gives the page's path."""
    compared = comparisons(study, store)
    if compared:
        plot_curves(study, compared, folder / "images" / f"{study.name}_curves.png")
        plot_differences(study, compared, folder / "images" / f"{study.name}_differences.png")
    page = folder / f"{study.name}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(report(study, compared), encoding="utf-8")
    return page


def comparisons(study: Study, store: Store) -> dict[str, Compared]:
    """Of each case of which enough seeds were run with all arms that were begun, in the study's order."""
    jobs = list(study.jobs())
    found = {case.name: store.found([job for job in jobs if job.case == case.name]) for case in study.cases}
    compared = {name: Compared(results) for name, results in found.items() if results}
    return {name: own for name, own in compared.items() if len(own.seeds) >= _FEWEST}


def report(study: Study, compared: Mapping[str, Compared]) -> str:
    """The page, as Markdown."""
    parts = [f"# {study.title}", study.question, *_how(study), *_not_run(study, compared)]
    if compared:
        parts += _claims(study, compared)
    if study.reading:
        parts += ["## What we make of it", study.reading]
    if compared:
        parts += [
            f"![held-out score as runs go on](images/{study.name}_curves.png)",
            f"![differences to {study.control}](images/{study.name}_differences.png)",
            "Curves: mean over seeds, with the standard error. Differences: paired by seed, with 95 % intervals.",
        ]
    for case in study.cases:
        if case.name in compared:
            parts += _case(study, case, compared[case.name])
    return "\n\n".join([*parts, *_arms(study)]) + "\n"


def _how(study: Study) -> Iterator[str]:
    yield (
        f"`python -m experiments {study.name}` makes this page from `experiments/results/{study.name}.jsonl`, and runs "
        "what is missing there. [How runs are made](README.md), what a score is, and what none of this can show."
    )


def _not_run(study: Study, compared: Mapping[str, Compared]) -> Iterator[str]:
    done = [f"{name}: {len(own.arms)} arms, {len(own.seeds)} seeds" for name, own in compared.items()]
    missing = [case.name for case in study.cases if case.name not in compared]
    yield f"Run so far: {'; '.join(done) or 'nothing'}." + (
        f" Not run, or not with enough seeds: {', '.join(missing)}." if missing else ""
    )


def _claims(study: Study, compared: Mapping[str, Compared]) -> Iterator[str]:
    rows = [row for claim in study.claims for row in _verdicts(claim, compared)]
    yield "## What was claimed, and what was found"
    yield table(("claim", "arm against control", "case", "difference, 95 % interval", "verdict here"), rows)
    yield (
        f"Differences are of the mean score over a run unless said otherwise. {len(rows)} intervals are not corrected "
        "for their number: about one in twenty would miss 0 by chance alone."
    )


def _verdicts(claim: Claim, compared: Mapping[str, Compared]) -> Iterator[Sequence[str]]:
    for case in claim.cases:
        own = compared.get(case)
        if own is None or not {claim.arm, claim.control} <= own.arms or len(own.seeds) < 2:
            continue
        found = own.difference(claim.arm, claim.control, claim.measure)
        measure = "" if claim.measure == "tokens" else f", {claim.measure}"
        versus = f"{claim.arm} against {claim.control}{measure}"
        yield claim.text, versus, case, _signed(found), _VERDICTS[found.sign]


def _case(study: Study, case: Case, compared: Compared) -> Iterator[str]:
    yield f"## {case.name}: {len(compared.seeds)} seeds"
    first, *others = study.measures
    names = [arm.name for arm in study.arms_of(case) if arm.name in compared.arms]
    heads = ["arm", _WORDS[first], f"difference to {study.control}", *(_WORDS[measure] for measure in others)]
    costs = ("tokens", "environment steps", "updates", "CPU s", "clipped", "no advantage", "explained", "ratio")
    rows = []
    for name in names:
        versus = "" if name == study.control or study.control not in names else _difference(study, compared, name)
        scores = [_plain(interval(compared.values(name, measure))) for measure in others]
        spent = [f"{compared.cost(name, what):,.0f}" for what in _ENDS]
        measured = [f"{compared.typical(name, what):.2f}" for what in _MEANS]
        rows.append([name, _plain(interval(compared.values(name, first))), versus, *scores, *spent, *measured])
    yield table((*heads, *costs), rows)


def _difference(study: Study, compared: Compared, name: str) -> str:
    return _signed(compared.difference(name, study.control, study.measures[0]))


def _arms(study: Study) -> Iterator[str]:
    yield "## Arms"
    yield table(
        ("arm", "what it is", "settings"),
        [(arm.name, arm.told, _settings(arm.settings)) for arm in study.arms],
    )
    yield f"Cases: {'; '.join(f'{case.name}: {_settings(case.settings)}' for case in study.cases)}."


def _settings(settings: Sequence[str]) -> str:
    """The last word on each."""
    held = dict(setting.split("=", 1) for setting in settings)
    return ", ".join(f"`{key}={value}`" for key, value in held.items())


def _plain(told: Interval) -> str:
    return f"{told.mean:.3f} ± {told.high - told.mean:.3f}"


def _signed(told: Interval) -> str:
    return f"{told.mean:+.3f} [{told.low:+.3f}, {told.high:+.3f}]"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
