"""`stepwell pool rescore`: from settings or a file, with counts for people and programs, to be interrupted at will."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stepwell.pool.store import SQLitePool
from tests.cli.processes import Finished, stepwell
from tests.fakes.judges import FakeJudge
from tests.fakes.servers import serving
from tests.scoring.worlds import records, references

Run = Callable[..., Finished]
ONLY_EVEN = "function=tests.scoring.functions:only_even"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pool.sqlite"
    with closing(SQLitePool.open(path)) as pool:
        for number in range(4):
            pool.put(*records(f"t{number}", str(number), task_id=f"task {number}"))
    return path


@pytest.fixture
def run(command: Run, path: Path) -> Run:
    return lambda *arguments: command("pool", "rescore", *arguments, "--pool", str(path))


def rewards(path: Path) -> dict[str, float | None]:
    with closing(SQLitePool.open(path)) as pool:
        return {trajectory.info.id: trajectory.reward for trajectory in pool.scan()}


def test_a_scorer_named_with_its_settings_scores_what_is_selected_once(run: Run, path: Path, tmp_path: Path) -> None:
    gold = references(tmp_path, **{"task 0": "0", "task 1": "8"})
    arguments = ("exact_match", f"references={gold}", "part=answer")
    first = run(*arguments, "--where", "trajectory_ids=[t0, t2]")
    assert (first.code, first.err) == (0, "")
    assert "1 scored, 0 were scored before, 1 with nothing to score, 0 failed" in first.out
    assert first.out.startswith("exact_match-")
    assert "1 scored, 1 were scored before, 2 with nothing to score" in run(*arguments).out
    assert rewards(path) == {"t0": 1.0, "t1": 0.0, "t2": None, "t3": None}


def test_a_file_describes_a_scorer_and_settings_beside_it_change_it(run: Run, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "scoring.yaml"
    file.write_text(
        "use: combined\nparts:\n- weight: 2\n  scorer: {use: regex, pattern: '(.)', part: number}\n"
        "- scorer: {use: regex, pattern: '[13]', part: odd}\n"
    )
    assert run(str(file), "--name", "both").code == 0
    assert rewards(path) == {"t0": 0.0, "t1": 3.0, "t2": 4.0, "t3": 7.0}
    single = tmp_path / "single.json"
    single.write_text(json.dumps({"use": "regex", "pattern": "x"}))
    assert run(str(single), "pattern=(.)", "part=number", "--replace").code == 0
    assert rewards(path) == {f"t{number}": float(number) for number in range(4)}


def test_json_says_what_became_of_them_and_a_failure_is_exit_code_1(run: Run) -> None:
    done = run("callable", ONLY_EVEN, "--name", "even", "--json")
    assert done.code == 1
    assert json.loads(done.out) == {
        "name": "even",
        **{"scored": 2, "unchanged": 0, "skipped": 0, "failed": 2},
        "failures": {"t1": "RuntimeError: odd", "t3": "RuntimeError: odd"},
    }
    assert "t1: RuntimeError: odd" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("regexp",), "did you mean 'regex'"),
        (("regex", "patern=a"), "did you mean 'pattern'"),
        (("regex",), "pattern"),
        (("nowhere.yaml",), "cannot read nowhere.yaml"),
        (("f1", "references=nowhere.jsonl"), "cannot read the references"),
        (("regex", "pattern=a", "--selection", "nowhere"), "no selection"),
    ],
)
def test_what_makes_no_sense_is_an_error_in_words_and_scores_nothing(run: Run, path, arguments, says: str) -> None:
    done = run(*arguments)
    assert done.code == 1
    assert says in done.err
    assert set(rewards(path).values()) == {None}


def test_a_pool_that_is_not_there_is_refused_and_none_is_made(command: Run, tmp_path: Path) -> None:
    done = command("pool", "rescore", "regex", "pattern=a", "--pool", str(tmp_path / "nope.sqlite"))
    assert done.code == 1
    assert "no pool at" in done.err
    assert not list(tmp_path.iterdir())


def test_a_scorer_that_can_score_nothing_more_ends_it_with_the_counts_and_the_reason(run: Run) -> None:
    said = iter(["Score: 5", 401])
    with serving(FakeJudge(lambda prompt: next(said)).app()) as url:
        done = run("judge", f"urls=[{url}]", "model=m", "api_key=sk-1", "--workers", "1")
    assert done.code == 1
    assert done.out.startswith("broken off: 1 scored,")
    assert "refuses the API key" in done.err
    assert "STEPWELL_JUDGE_KEY" in done.err


def test_a_function_that_never_returns_is_interrupted_all_the_same(path: Path, tmp_path: Path) -> None:
    called = tmp_path / "called"
    scorer = ("callable", "function=tests.scoring.functions:for_ever")
    with stepwell("pool", "rescore", *scorer, "--pool", str(path), env={"STEPWELL_CALLED": str(called)}) as rescoring:
        while not called.exists():
            assert rescoring.process.poll() is None
        assert rescoring.interrupt() == 130
        assert "The same command goes on" in "".join(rescoring.rest())
    in_time = (*scorer, "--pool", str(path), "--timeout", "1")
    with stepwell("pool", "rescore", *in_time, env={"STEPWELL_CALLED": str(called)}) as rescoring:
        rescoring.wait_for("2 failed")
        assert rescoring.process.wait(60) == 1


def test_interrupted_it_says_how_to_go_on_and_the_same_command_does(path: Path, tmp_path: Path) -> None:
    with closing(SQLitePool.open(path)) as pool:
        for number in range(4, 120):
            pool.put(*records(f"t{number}", str(number)))
    called = tmp_path / "called"
    scorer = ("callable", "function=tests.scoring.functions:slowly", "--workers", "2")
    arguments, env = ("pool", "rescore", *scorer, "--pool", str(path)), {"STEPWELL_CALLED": str(called)}
    with stepwell(*arguments, env=env) as rescoring:
        while not called.exists() or called.read_text().count("\n") < 8:
            assert rescoring.process.poll() is None
        assert rescoring.interrupt() == 130
        said = "".join(rescoring.rest())
    assert "scored before" in said
    assert "The same command goes on" in said
    assert "Traceback" not in said
    with stepwell(*arguments, env=env) as rescoring:
        last = rescoring.wait_for("0 failed")
        assert rescoring.process.wait(60) == 0
    assert " 0 were scored before" not in last
    assert rewards(path) == {f"t{number}": float(number) for number in range(120)}
