"""What agents did, as a table in the terminal: one row for all trajectories, and one for each kind of task."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.table import Table

from stepwell.rollout.env import TaskSet
from stepwell.rollout.run import Ending
from stepwell.rollout.statistics import Summary, Typed, by_type, summary

_COLUMNS: Final[tuple[tuple[str, Callable[[Summary], str]], ...]] = (
    ("trajectories", lambda told: f"{told.trajectories}"),
    ("failed", lambda told: f"{told.failed}"),
    ("reward", lambda told: f"{told.reward:.3f}"),
    ("turns", lambda told: f"{told.turns:.1f}"),
    ("calls", lambda told: f"{told.tool_calls:.1f}"),
    ("valid", lambda told: "-" if told.valid_call_rate is None else f"{told.valid_call_rate:.0%}"),
    ("prompt tokens", lambda told: f"{told.prompt_tokens:.0f}"),
    ("response tokens", lambda told: f"{told.response_tokens:.0f}"),
    ("policy s", lambda told: f"{told.seconds_policy:.1f}"),
    ("environment s", lambda told: f"{told.seconds_environment:.1f}"),
)
"""Means per trajectory, but for the counts and the share of valid calls."""


def summary_table(endings: Sequence[Ending], tasks: TaskSet) -> Table | None:
    """The table; None if there is nothing to tell, since all trajectories failed."""
    whole = summary(endings)
    if whole is None:
        return None
    kinds = by_type(endings, tasks.task_type) if isinstance(tasks, Typed) else {}
    table = Table("tasks", *(name for name, _ in _COLUMNS), box=None, pad_edge=False)
    for name, told in {"all": whole, **kinds}.items():
        table.add_row(name, *(shown(told) for _, shown in _COLUMNS))
    return table
