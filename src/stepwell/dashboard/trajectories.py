"""Trajectories as lines of a table."""

from typing import Final

from stepwell.dashboard.addresses import trajectory_address
from stepwell.dashboard.tables import Column, number, right, text
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import STATUS_COLOUR
from stepwell.pool.base import TrajectorySummary

TRAJECTORY: Final[Column] = text("id", "Trajectory", clip=True)
STATUS: Final[Column] = text("status", "Status", colours=STATUS_COLOUR)

COLUMNS: Final[tuple[Column, ...]] = (
    TRAJECTORY,
    text("task", "Task", clip=True),
    text("agent", "Agent", clip=True),
    text("source", "Source", clip=True),
    STATUS,
    text("verdict", "Verdict"),
    right("reward", "Reward"),
    number("steps", "Steps"),
    number("tokens", "Tokens"),
    right("version", "Version"),
    right("opened", "Opened"),
)


def row(summary: TrajectorySummary, visit: Visit) -> dict[str, object]:
    """The line of one, for `COLUMNS` or some of them."""
    low, high = summary.policy_version_min, summary.policy_version_max
    info = summary.info
    return {
        "id": info.id,
        "id_href": trajectory_address(info.id),
        "task": info.task_id,
        "agent": info.agent,
        "source": info.source,
        "status": summary.status,
        "verdict": "" if summary.verdict == "clear" else summary.verdict,
        "reward": "" if summary.reward is None else f"{summary.reward:.3g}",
        "steps": summary.steps,
        "tokens": summary.response_tokens,
        "version": "" if low is None else f"{low}" if low == high else f"{low} to {high}",
        "opened": visit.time(info.created_at, "%m-%d %H:%M:%S"),
    }
