"""Rescoring gives each trajectory its new reward exactly once, whatever happens meanwhile, and forgets no old one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepwell.config import component_config
from stepwell.curation.selection import Selection
from stepwell.errors import ConfigError, InvalidRequest, PoolError
from stepwell.pool.base import Pool
from stepwell.pool.store import open_pool
from stepwell.scoring import decision
from stepwell.scoring.base import Score, ScorerConfig, Unusable
from stepwell.scoring.rescore import Rescored, name_of, rescore
from stepwell.scoring.scorers import SCORERS
from stepwell.scoring.scorers.callable import CallableConfig
from stepwell.scoring.scorers.combined import CombinedConfig
from stepwell.scoring.scorers.exact_match import ExactMatchConfig
from stepwell.scoring.scorers.feedback import FeedbackConfig
from stepwell.scoring.scorers.judge import JudgeConfig
from stepwell.scoring.scorers.regex import RegexConfig
from stepwell.types import Annotation, GroupInfo
from tests.fakes.judges import FakeJudge
from tests.fakes.servers import serving
from tests.scoring.worlds import records, references, step

HERE = "tests.scoring.functions"
OWN = Path(__file__).with_name("own.py")
NUMBER = RegexConfig(pattern=r"(\d+)")


def fill(pool: Pool, count: int) -> None:
    pool.put(*(record for number in range(count) for record in records(f"t{number}", str(number))))


def rewards(pool: Pool) -> dict[str, float | None]:
    return {trajectory.info.id: trajectory.reward for trajectory in pool.scan()}


def counts(done: Rescored) -> tuple[int, int, int, int]:
    return done.scored, done.unchanged, done.skipped, done.failed


def test_every_trajectory_that_is_selected_has_its_new_reward_and_is_scored_no_second_time(pool: Pool) -> None:
    fill(pool, 5)
    chosen = Selection(trajectory_ids=("t1", "t3"))
    assert counts(rescore(pool, NUMBER, chosen)) == (2, 0, 0, 0)
    assert rewards(pool) == {"t0": None, "t1": 1.0, "t2": None, "t3": 3.0, "t4": None}
    assert counts(rescore(pool, NUMBER)) == (3, 2, 0, 0)
    before = pool.cursor()
    assert counts(rescore(pool, NUMBER)) == (0, 5, 0, 0)
    assert pool.cursor() == before
    assert rewards(pool) == {f"t{number}": float(number) for number in range(5)}


def test_other_settings_score_anew_and_the_newest_of_a_part_holds_while_the_old_one_stays_in_the_history(
    pool: Pool,
) -> None:
    fill(pool, 1)
    rescore(pool, RegexConfig(pattern="1", part="answer"))
    rescore(pool, RegexConfig(pattern="0", part="answer"))
    assert pool.trajectory("t0").reward_parts == (("answer", 1.0),)
    held = [(note.name, note.value) for note in pool.notes("t0") if note.kind == "reward"]
    assert held == [("answer", 0.0), ("answer", 1.0)]
    rescore(pool, RegexConfig(pattern="0", part="other"))
    assert pool.trajectory("t0").reward == 2.0


def test_under_another_name_the_same_scorer_scores_again(pool: Pool) -> None:
    fill(pool, 2)
    assert counts(rescore(pool, NUMBER, name="first")) == (2, 0, 0, 0)
    assert counts(rescore(pool, NUMBER, name="second")) == (2, 0, 0, 0)
    assert name_of(NUMBER) == name_of(RegexConfig(pattern=r"(\d+)")) != name_of(RegexConfig(pattern=r"(\d)"))


def test_a_rescoring_that_replaces_leaves_nothing_of_the_old_reward_but_its_history(pool: Pool) -> None:
    fill(pool, 1)
    pool.put(
        Annotation.reward("trajectory", "t0", 5.0, "format"),
        Annotation.reward("trajectory", "t0", 7.0, "regex"),
        Annotation.reward("step", "t0.0", 3.0, "regex"),
        Annotation.reward("step", "t0.0", 0.0, "nothing"),
    )
    rescore(pool, NUMBER, replaces=True)
    assert pool.trajectory("t0").reward == 0.0
    assert pool.trajectory("t0").reward_parts == (("format", 0.0), ("nothing", 0.0), ("regex", 0.0))
    assert len([note for note in pool.notes("t0") if note.kind == "reward"]) == 4 + 1 + 2
    assert counts(rescore(pool, NUMBER, replaces=True)) == (0, 1, 0, 0)


def test_rewards_of_steps_belong_to_their_steps(pool: Pool) -> None:
    fill(pool, 1)
    rescore(pool, CallableConfig(function=f"{HERE}:of_steps"))
    assert pool.trajectory("t0").step_rewards == (1.0,)
    assert [(note.target, note.name, note.text) for note in pool.notes("t0") if note.kind == "reward"] == [
        ("step", "even", "by index")
    ]


def test_one_that_fails_is_told_and_the_others_are_scored_and_it_is_tried_again(pool: Pool) -> None:
    fill(pool, 4)
    config = CallableConfig(function=f"{HERE}:only_even")
    first, again = rescore(pool, config), rescore(pool, config)
    assert counts(first) == (2, 0, 0, 2)
    assert sorted(first.failures) == [("t1", "RuntimeError: odd"), ("t3", "RuntimeError: odd")]
    assert counts(again) == (0, 2, 0, 2)


def test_a_reward_that_no_pool_can_hold_is_a_failure_and_nothing_to_say_is_none(pool: Pool) -> None:
    fill(pool, 1)
    infinite = rescore(pool, CallableConfig(function=f"{HERE}:infinite"))
    assert infinite.failed == 1
    assert "finite" in infinite.failures[0][1]
    assert counts(rescore(pool, CallableConfig(function=f"{HERE}:silent"))) == (0, 0, 1, 0)
    assert rewards(pool) == {"t0": None}


def test_rewards_of_one_trajectory_are_stored_all_or_none(pool: Pool) -> None:
    fill(pool, 1)
    done = rescore(pool, CallableConfig(function=f"{HERE}:of_a_strange_step"))
    assert done.failures == (("t0", "the scorer rewards steps that the trajectory does not have: elsewhere"),)
    assert rewards(pool) == {"t0": None}


def test_a_reward_that_the_pool_alone_would_refuse_keeps_the_others_out(pool: Pool) -> None:
    fill(pool, 2)
    config, before = CallableConfig(function=f"{HERE}:of_an_impossible_part"), pool.cursor()
    assert counts(rescore(pool, config)) == counts(rescore(pool, config)) == (0, 0, 0, 2)
    assert pool.cursor() == before


def test_two_results_of_one_name_are_never_mixed_and_the_first_that_is_stored_counts(pool: Pool, monkeypatch) -> None:
    fill(pool, 1)
    first: list[Rescored] = []
    faster = CallableConfig(function=f"{HERE}:four")
    monkeypatch.setattr(f"{HERE}.meanwhile", lambda: first.append(rescore(pool, faster, name="both")))
    slower = rescore(pool, CallableConfig(function=f"{HERE}:interrupted"), name="both")
    assert [counts(done) for done in (*first, slower)] == [(1, 0, 0, 0), (0, 1, 0, 0)]
    assert dict(pool.trajectory("t0").reward_parts) == {f"y{number}": float(number) for number in range(4)}


def test_replacing_sees_what_was_rewarded_while_it_scored_and_mixes_nothing(pool: Pool, monkeypatch) -> None:
    fill(pool, 1)
    late = Annotation.reward("trajectory", "t0", 9.0, "late")
    monkeypatch.setattr(f"{HERE}.meanwhile", lambda: pool.put(late))
    rescore(pool, CallableConfig(function=f"{HERE}:interrupted"), replaces=True)
    assert dict(pool.trajectory("t0").reward_parts) == {"late": 0.0, "x0": 1.0, "x1": 1.0}


def test_what_was_decided_before_a_kill_is_stored_the_next_time_without_asking_the_scorer(pool: Pool) -> None:
    fill(pool, 1)
    looked_at = pool.trajectory("t0")
    score = Score(parts={"a": 0.1, "b": 2.0}, steps={"t0.0": {"c": -1.0}}, text="why\n“so”")
    mark = decision.mark_of("n", False, looked_at)
    pool.put(decision.marked(mark, "t0", decision.rewards_of(looked_at, score)))
    assert rewards(pool) == {"t0": None}
    failing = CallableConfig(function=f"{HERE}:text")
    assert counts(rescore(pool, failing, name="n")) == (1, 0, 0, 0)
    assert pool.trajectory("t0").reward_parts == (("a", 0.1), ("b", 2.0), ("c", -1.0))
    assert {note.text for note in pool.notes("t0") if note.kind == "reward"} == {"why\n“so”"}
    before = pool.cursor()
    assert counts(rescore(pool, failing, name="n")) == (0, 1, 0, 0)
    assert pool.cursor() == before


@pytest.mark.parametrize("name", ["", "mine"])
def test_replacing_is_another_rescoring_than_adding(pool: Pool, name: str) -> None:
    fill(pool, 1)
    pool.put(Annotation.reward("trajectory", "t0", 5.0, "format"))
    one = RegexConfig(pattern="0")
    assert counts(rescore(pool, one, name=name)) == (1, 0, 0, 0)
    assert pool.trajectory("t0").reward == 6.0
    assert counts(rescore(pool, one, name=name, replaces=True)) == (1, 0, 0, 0)
    assert pool.trajectory("t0").reward == 1.0
    assert counts(rescore(pool, one, name=name, replaces=True)) == (0, 1, 0, 0)


def test_two_rescorings_of_one_name_at_the_same_time_give_one_reward(pool: Pool) -> None:
    fill(pool, 40)
    with ThreadPoolExecutor(2) as both:
        done = list(both.map(lambda config: rescore(pool, config, name="both"), (NUMBER, RegexConfig(pattern="no"))))
    assert sum(one.scored for one in done) == 40
    assert sum(one.unchanged for one in done) == 40
    assert all(len([n for n in pool.notes(f"t{k}") if n.kind == "reward"]) == 1 for k in range(40))


def test_two_rescorings_of_one_name_at_the_same_time_never_mix_their_rewards(pool: Pool) -> None:
    fill(pool, 40)
    with ThreadPoolExecutor(2) as both:
        configs = [CallableConfig(function=f"{HERE}:{function}") for function in ("four", "several")]
        done = list(both.map(lambda config: rescore(pool, config, name="both"), configs))
    assert sum(one.scored for one in done) == 40
    assert sum(one.unchanged for one in done) == 40
    parts = [dict(trajectory.reward_parts) for trajectory in pool.scan()]
    whole = [{"short": 1.0, "polite": 0.5}, {f"y{number}": float(number) for number in range(4)}]
    assert all(given in whole for given in parts)


def test_the_task_of_a_group_is_that_of_its_trajectories(pool: Pool, tmp_path: Path) -> None:
    pool.put(GroupInfo(id="g", task_id="capital", size=1), *records("t", "Paris", group_id="g"))
    rescore(pool, ExactMatchConfig(references=references(tmp_path, capital="paris"), part="answer"))
    assert rewards(pool) == {"t": 1.0}
    assert pool.stats().groups_ready == 1


def test_whoever_has_grown_or_has_other_feedback_is_scored_again(pool: Pool) -> None:
    pool.put(*records("t", "1")[:2])
    thumb = Annotation(target="step", target_id="t.0", kind="feedback", name="thumbs", value=1.0)
    assert counts(rescore(pool, FeedbackConfig())) == (0, 0, 1, 0)
    pool.put(thumb)
    assert counts(rescore(pool, FeedbackConfig())) == (1, 0, 0, 0)
    assert counts(rescore(pool, FeedbackConfig())) == (0, 1, 0, 0)
    pool.put(Annotation(target="step", target_id="t.0", kind="feedback", name="thumbs", value=-1.0))
    assert counts(rescore(pool, FeedbackConfig())) == (1, 0, 0, 0)
    assert rewards(pool) == {"t": -1.0}
    pool.put(Annotation(target="trajectory", target_id="t", kind="note", name="note", text="looked at"))
    assert counts(rescore(pool, FeedbackConfig())) == (0, 1, 0, 0)
    pool.put(step("t", "2", 1))
    assert counts(rescore(pool, FeedbackConfig())) == (1, 0, 0, 0)


def test_progress_hears_of_each_trajectory_and_of_no_more_than_there_are(pool: Pool) -> None:
    fill(pool, 70)
    heard: list[int] = []
    done = rescore(pool, NUMBER, workers=3, progress=lambda so_far: heard.append(so_far.seen))
    assert heard == list(range(1, 71))
    assert done.seen == 70


def test_an_empty_pool_and_a_wrong_number_of_workers(pool: Pool) -> None:
    assert rescore(pool, NUMBER) == Rescored()
    with pytest.raises(InvalidRequest, match="workers"):
        rescore(pool, NUMBER, workers=0)
    with pytest.raises(ConfigError):
        rescore(pool, CallableConfig(function="nowhere:f"))


def test_a_judge_is_asked_by_many_at_once_but_by_no_more_than_the_workers(pool: Pool) -> None:
    fill(pool, 12)
    judge = FakeJudge(lambda prompt: "Score: 5\nwith a \0 in it", together=4)
    with serving(judge.app()) as url:
        done = rescore(pool, JudgeConfig(urls=(url,), model="m"), workers=4)
    assert done.scored == 12
    assert (len(judge.asked), judge.most_at_once) == (12, 4)
    reward = next(note for note in pool.notes("t0") if note.kind == "reward")
    assert (reward.value, reward.text) == (0.5, "Score: 5\nwith a  in it")


def test_a_combination_of_which_one_fails_leaves_nothing_at_work(pool: Pool) -> None:
    fill(pool, 12)
    judge = FakeJudge(lambda prompt: "Score: 5", together=2)
    with serving(judge.app()) as url:
        summands = [
            {"scorer": {"use": "judge", "urls": [url], "model": "m"}},
            {"scorer": {"use": "callable", "function": f"{HERE}:text"}},
        ]
        assert rescore(pool, CombinedConfig.model_validate({"parts": summands}), workers=2).failed == 12
        assert (len(judge.asked), judge.most_at_once) == (12, 2)
        asked = rescore(pool, CombinedConfig.model_validate({"parts": summands[::-1]}), workers=2)
    assert asked.failed == 12
    assert len(judge.asked) == 12


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_judge_that_refuses_everything_is_asked_once(pool: Pool, status: int) -> None:
    fill(pool, 20)
    judge = FakeJudge(lambda prompt: status)
    with serving(judge.app()) as url, pytest.raises(Unusable, match=f"HTTP {status}"):
        rescore(pool, JudgeConfig(urls=(url,), model="m"), workers=1)
    assert len(judge.asked) == 1


def test_a_judge_that_died_ends_the_rescoring_and_what_it_said_before_is_kept(pool: Pool) -> None:
    fill(pool, 30)
    said = iter(["Score: 5"] * 3)
    judge = FakeJudge(lambda prompt: next(said, 503))
    with serving(judge.app()) as url, pytest.raises(Unusable, match="8 questions in a row"):
        rescore(pool, JudgeConfig(urls=(url,), model="m", retries=1, backoff=0), workers=1)
    assert len(judge.asked) == 3 + 8 * 2
    assert sum(reward == 0.5 for reward in rewards(pool).values()) == 3


def test_however_a_function_ends_it_concerns_one_trajectory(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    fill(pool, 4)
    done = rescore(pool, CallableConfig(function=f"{HERE}:of_odd_kinds"))
    assert counts(done) == (1, 0, 0, 3)
    assert [why.split(": ")[1] for _, why in sorted(done.failures)] == [
        "SystemExit",
        "KeyboardInterrupt",
        "StopIteration",
    ]
    leaving = rescore(pool, CallableConfig(function=f"{HERE}:leaving"))
    assert {why for _, why in leaving.failures} == {"SystemExit: 3"}
    assert caplog.messages == []


def test_one_that_takes_too_long_fails_and_the_others_are_scored(pool: Pool, tmp_path: Path, monkeypatch) -> None:
    fill(pool, 4)
    monkeypatch.setenv("STEPWELL_CALLED", str(tmp_path / "called"))
    done = rescore(pool, CallableConfig(function=f"{HERE}:for_ever"), timeout=2.0, workers=2)
    assert counts(done) == (2, 0, 0, 2)
    assert dict(done.failures) == dict.fromkeys(["t1", "t3"], "the scorer took longer than 2 s (timeout)")
    with pytest.raises(InvalidRequest, match="timeout"):
        rescore(pool, NUMBER, timeout=0)


@pytest.mark.parametrize(
    ("kind", "says"),
    [("Unfinished", "needs a method `build`"), ("Broken", "no weights here"), ("Nothing", "no `score`")],
)
def test_a_scorer_of_somebodys_own_that_cannot_be_made_is_an_error_in_words(pool: Pool, kind: str, says: str) -> None:
    section = {"use": f"{OWN}:{kind}"}
    with pytest.raises(ConfigError, match=says):
        rescore(pool, component_config(SCORERS, ScorerConfig, section))
    with pytest.raises(ConfigError, match=says):
        rescore(pool, component_config(SCORERS, ScorerConfig, {"use": "combined", "parts": [{"scorer": section}]}))


def test_a_scorer_that_cannot_be_closed_has_scored_all_the_same(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    fill(pool, 2)
    section = {"use": f"{OWN}:Stuck"}
    assert rescore(pool, component_config(SCORERS, ScorerConfig, section)).scored == 2
    combined = component_config(SCORERS, ScorerConfig, {"use": "combined", "parts": [{"scorer": section}] * 2})
    assert rescore(pool, combined).scored == 2
    assert caplog.messages == ["the scorer _Stuck cannot be closed: OSError: it is gone"] * 3


def test_a_pool_that_fails_ends_the_rescoring_with_its_own_error(pool: Pool) -> None:
    fill(pool, 3)
    pool.close()
    with pytest.raises(PoolError):
        rescore(pool, NUMBER)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_broken_off_and_taken_up_again_each_is_scored_once(location: str, tmp_path: Path, sent: signal.Signals) -> None:
    with closing(open_pool(location)) as pool:
        fill(pool, 60)
    called = tmp_path / "called"
    first = _child(location, called)
    _wait_for_lines(called, 10)
    first.send_signal(sent)
    assert first.wait(60) != 0
    looked_at = len(called.read_text().splitlines())
    assert 10 <= looked_at < 60
    second = _child(location, called)
    done: dict[str, Any] = json.loads(second.communicate(timeout=60)[0])
    assert done["failed"] == 0
    assert done["scored"] + done["unchanged"] == 60
    assert done["unchanged"] >= looked_at - 4  # only those that were being scored were lost
    with closing(open_pool(location)) as pool:
        assert rewards(pool) == {f"t{number}": float(number) for number in range(60)}
        given = Counter(note.target_id for n in range(60) for note in pool.notes(f"t{n}") if note.kind == "reward")
    assert set(given.values()) == {1}


def _child(location: str, called: Path) -> "subprocess.Popen[str]":
    """Rescore in another process, four at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.scoring.test_rescore", location],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "STEPWELL_CALLED": str(called)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def _wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline, "it never began"
        time.sleep(0.005)


def _main(location: str) -> None:
    slow: ScorerConfig = CallableConfig(function=f"{HERE}:slowly")
    pool = open_pool(location)
    try:
        done = rescore(pool, slow, workers=4)
    finally:
        pool.close()
    print(json.dumps({"scored": done.scored, "unchanged": done.unchanged, "failed": done.failed}))


if __name__ == "__main__":
    _main(sys.argv[1])
