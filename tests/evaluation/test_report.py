"""An evaluation's numbers: a task counts once, however often it was sampled."""

import pyarrow.parquet as pq
import pytest

from stepwell.environments import ENVIRONMENTS
from stepwell.errors import InvalidRequest, NotFound
from stepwell.evaluation.benchmarks import BENCHMARKS, benchmark
from stepwell.evaluation.items import Item, item_of
from stepwell.evaluation.report import compared, lines, write_lines
from stepwell.rollout.run import Ending


def item(task: str, sample: int, reward: float, kind: str = "", **facts: object) -> Item:
    given = {"how": "terminated", "turns": 2, "measured": {"em": reward}, **facts}
    return item_of(Ending(trajectory_id="traj", task_id=task, reward=reward, **given), sample, kind)


def told(items: list[Item], ks: tuple[int, ...] = (1,), solved_at: float = 1.0) -> dict[tuple[str, str], float]:
    return {(line.kind, line.metric): line.value for line in lines("b", "m", items, ks, solved_at)}


def test_a_task_counts_once_with_the_mean_of_its_samples() -> None:
    items = [item("a", 0, 1.0), item("b", 0, 0.0), item("b", 1, 0.0), item("b", 2, 1.0)]
    assert told(items)["", "reward"] == pytest.approx((1 + 1 / 3) / 2)
    assert told(items)["", "em"] == pytest.approx((1 + 1 / 3) / 2)


def test_pass_at_k_is_over_tasks_with_enough_samples_and_counts_what_is_solved() -> None:
    items = [item("a", 0, 0.6), item("a", 1, 0.2), item("b", 0, 0.6)]
    found = told(items, (1, 2), solved_at=0.5)
    assert found["", "pass@1"] == pytest.approx((0.5 + 1) / 2)
    assert found["", "pass@2"] == 1.0
    assert told(items, (1,))["", "pass@1"] == 0.0


def test_kinds_have_lines_of_their_own_where_there_are_several() -> None:
    found = told([item("a", 0, 1.0, "pick"), item("b", 0, 0.0, "heat")])
    assert (found["pick", "reward"], found["heat", "reward"], found["", "reward"]) == (1.0, 0.0, 0.5)
    assert {kind for kind, _ in told([item("a", 0, 1.0, "pick")])} == {""}


def test_what_failed_counts_as_failed_and_as_nothing_earned() -> None:
    found = told([item("a", 0, 1.0), item("b", 0, 0.0, how="failed", measured={}, turns=0)])
    assert (found["", "failed_rate"], found["", "em"]) == (0.5, 0.5)


def test_the_valid_call_rate_is_over_all_calls_and_absent_without_any() -> None:
    found = told([item("a", 0, 1.0, tool_calls=3), item("b", 0, 0.0, tool_calls=1, invalid_calls=1)])
    assert found["", "valid_call_rate"] == 0.75
    assert ("", "valid_call_rate") not in told([item("a", 0, 1.0)])


def test_a_comparison_is_over_the_tasks_of_both() -> None:
    before = [item("a", 0, 0.0), item("b", 0, 0.0), item("only here", 0, 1.0)]
    after = [item("a", 0, 1.0), item("b", 0, 0.0), item("b", 1, 1.0), item("only there", 0, 0.0)]
    found = compared(before, after, "em")
    assert (found.before, found.after, found.tasks) == (0.0, 0.75, 2)
    with pytest.raises(InvalidRequest, match="no task in common"):
        compared(before[2:], after, "em")


def test_lines_are_kept_as_a_table(tmp_path) -> None:
    made = list(lines("b", "m", [item("a", 0, 1.0)], (1,), 1.0))
    write_lines(tmp_path / "summary.parquet", made)
    rows = pq.read_table(tmp_path / "summary.parquet").to_pylist()
    assert [(row["metric"], row["value"]) for row in rows] == [(line.metric, line.value) for line in made]
    assert list(rows[0]) == ["benchmark", "model", "kind", "metric", "value", "low", "high", "items"]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_settings_that_its_environment_takes(name: str) -> None:
    settings = dict(BENCHMARKS[name].environment)
    ENVIRONMENTS[settings.pop("use")].model_validate(settings)


def test_an_unknown_benchmark_is_told_the_known() -> None:
    with pytest.raises(NotFound, match="gsm8k"):
        benchmark("gsm9k")


def test_what_is_told_of_one_benchmark_leaves_the_others_where_they_are(tmp_path) -> None:
    path, items = tmp_path / "summary.parquet", [item("a", 0, 1.0)]
    write_lines(path, list(lines("first", "m", items, (1,), 1.0)))
    second = list(lines("second", "m", items, (1,), 1.0))
    write_lines(path, second)
    write_lines(path, second)
    found = pq.read_table(path).to_pylist()
    assert {row["benchmark"] for row in found} == {"first", "second"}
    assert len(found) == 2 * len(second)
