"""Studies name what exists, their commands work, and the committed pages are those of the committed results."""

from pathlib import Path

import pytest
from rich.console import Console

from experiments import __main__ as commands
from experiments import lookup
from experiments.__main__ import main, run_missing
from experiments.design import Job, Study
from experiments.report import DOCS, comparisons, report
from experiments.run import Point, RunConfig, run
from experiments.store import RESULTS, Store
from experiments.studies import STUDIES

TINY = {"algorithm": {"use": "grpo"}, "budget": 1, "trials": 1, "trial_turns": 16, "warm_up": {"updates": 2}}
SHORT = {**TINY, "environment": {"turns": 2, "letters": 2}, "collecting": {"steps": 16}}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(params=STUDIES.values(), ids=lambda study: study.name)
def study(request: pytest.FixtureRequest) -> Study:
    return request.param


def test_arms_cases_and_claims_name_each_other(study: Study) -> None:
    arms, cases = [arm.name for arm in study.arms], [case.name for case in study.cases]
    assert (len(set(arms)), len(set(cases))) == (len(arms), len(cases))
    named = {name for claim in study.claims for name in (claim.arm, claim.control)}
    named |= {name for case in study.cases for name in case.arms}
    assert named | set(study.curves) | {study.control} <= set(arms)
    assert {name for claim in study.claims for name in claim.cases} <= set(cases)


def test_every_claim_can_be_decided_in_some_case(study: Study) -> None:
    run_in = {case.name: {arm.name for arm in study.arms_of(case)} for case in study.cases}
    idle = [
        claim.text for claim in study.claims if not any({claim.arm, claim.control} <= run_in[c] for c in claim.cases)
    ]
    assert idle == []


def test_every_run_has_five_seeds_and_settings_that_hold(study: Study) -> None:
    jobs = list(study.jobs())
    assert {job.seed for job in jobs} == {1, 2, 3, 4, 5}
    first = [job for job in jobs if job.seed == 1]
    assert [job.config.build_algorithm() for job in first] != []
    assert len({job.config.key for job in jobs if job.case == first[0].case}) == sum(
        job.case == first[0].case for job in jobs
    )


def test_the_committed_page_is_that_of_the_committed_results(study: Study) -> None:
    page = DOCS / f"{study.name}.md"
    store = Store(RESULTS / f"{study.name}.jsonl")
    assert page.read_text(encoding="utf-8") == report(study, comparisons(study, store)), (
        f"run `python -m experiments {study.name} --report`"
    )


def test_the_committed_page_of_the_whole_system_is_that_of_its_results() -> None:
    courses = [lookup.read(file) for file in sorted((RESULTS / "lookup").glob("*.json"))]
    assert (DOCS / "lookup.md").read_text(encoding="utf-8") == lookup.report(courses)


def test_a_run_is_the_same_each_time_but_for_its_seconds() -> None:
    config = RunConfig.model_validate(SHORT)
    one, other = ([(p.tokens, p.steps, p.updates, p.score, p.entropy) for p in run(config)] for _ in range(2))
    assert one == other
    assert [updates for _, _, updates, _, _ in one] == [0, 1]


def test_a_critic_may_know_the_first_policy_before_it_begins() -> None:
    settings = {**SHORT, "algorithm": {"use": "steppo"}, "critic_updates": 2, "critic": "head"}
    assert run(RunConfig.model_validate(settings))[-1].updates == 1


def test_what_was_run_is_kept_and_not_run_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "own.jsonl")
    jobs = [Job("case", "arm", 1, RunConfig.model_validate(SHORT))]
    run_missing(Console(quiet=True), jobs, store, workers=1)
    assert [job for job in jobs if Store(tmp_path / "own.jsonl").find(job) is None] == []


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(config: RunConfig) -> list[Point]:
        if config.seed == 2:
            raise KeyboardInterrupt
        return [Point(tokens=0, steps=0, updates=0, seconds=0.0, score=0.0)]

    monkeypatch.setattr(commands, "run", interrupted)
    jobs = [Job("case", "arm", seed, RunConfig.model_validate({**SHORT, "seed": seed})) for seed in (1, 2, 3)]
    with pytest.raises(KeyboardInterrupt):
        run_missing(Console(quiet=True), jobs, Store(tmp_path / "own.jsonl"), workers=1)
    kept = Store(tmp_path / "own.jsonl")
    assert [kept.find(job) is not None for job in jobs] == [True, False, False]


def test_help_shows_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "python -m experiments steppo" in capsys.readouterr().out


def test_results_and_pictures_stay_small() -> None:
    sizes = {path.name: path.stat().st_size for path in [*RESULTS.rglob("*.json*"), *DOCS.rglob("*.png")]}
    assert {name: size for name, size in sizes.items() if size > 400_000} == {}
