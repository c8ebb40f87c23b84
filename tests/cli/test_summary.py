"""The table of what agents did."""

import io
from dataclasses import dataclass

from rich.console import Console

from stepwell.cli.summary import summary_table
from stepwell.rollout.run import Ending
from tests.rollout.worlds import ScriptedTasks


@dataclass
class OfTwoKinds(ScriptedTasks):
    def task_type(self, task_id: str) -> str:
        return "short" if len(task_id) == 1 else "long"


def shown(endings: list[Ending], tasks: ScriptedTasks) -> list[list[str]]:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_table(endings, tasks))
    return [line.split() for line in console.export_text().splitlines()]


def ending(task_id: str, **facts) -> Ending:
    return Ending(trajectory_id=task_id, task_id=task_id, **{"how": "terminated", **facts})


def test_all_trajectories_have_a_row_and_each_kind_of_task_has_one() -> None:
    endings = [
        ending("a", reward=1.0, turns=2, tool_calls=2, invalid_calls=1, prompt_tokens=30, response_tokens=8),
        ending("bb", turns=4, policy_seconds=1.5, environment_seconds=0.5),
        ending("cc", how="failed"),
    ]
    head, *rows = shown(endings, OfTwoKinds([]))
    assert head[:6] == ["tasks", "trajectories", "failed", "reward", "turns", "calls"]
    assert rows == [
        ["all", "2", "1", "0.500", "3.0", "1.0", "50%", "15", "4", "0.8", "0.2"],
        ["long", "1", "1", "0.000", "4.0", "0.0", "-", "0", "0", "1.5", "0.5"],
        ["short", "1", "0", "1.000", "2.0", "2.0", "50%", "30", "8", "0.0", "0.0"],
    ]


def test_tasks_of_one_kind_have_one_row() -> None:
    assert len(shown([ending("a")], ScriptedTasks([]))) == 2


def test_nothing_is_told_where_all_failed() -> None:
    assert summary_table([ending("a", how="failed")], ScriptedTasks([])) is None
