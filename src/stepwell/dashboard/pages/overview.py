"""The first page: how much was collected, what it taught, and the newest trajectories."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from nicegui import ui

from stepwell.dashboard.charts import line, lines
from stepwell.dashboard.frame import follow
from stepwell.dashboard.reading.overview import NEWEST, Overview, read_overview
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import LONG_CELL, STATUS_CELL, TRAJECTORY_CELL, Tile, heading
from stepwell.pool.base import PoolStats, TrajectorySummary

_EMPTY: Final = """\
Nothing has been collected yet. Point an agent's base URL at the gateway (`stepwell serve`), and each of its calls \
appears here as a step; or run `stepwell demo` to watch a small model learn.
"""

_TILES: Final = ("Groups", "Trajectories", "Steps", "Tokens sampled", "Policy version")

_COLUMNS: Final[list[dict[str, Any]]] = [
    {"name": "id", "label": "Trajectory", "field": "id", "align": "left"},
    {"name": "task", "label": "Task", "field": "task", "align": "left"},
    {"name": "by", "label": "From", "field": "by", "align": "left"},
    {"name": "status", "label": "Status", "field": "status", "align": "left"},
    {"name": "reward", "label": "Reward", "field": "reward"},
    {"name": "steps", "label": "Steps", "field": "steps"},
    {"name": "tokens", "label": "Tokens", "field": "tokens"},
    {"name": "version", "label": "Version", "field": "version"},
    {"name": "opened", "label": "Opened", "field": "opened"},
]

_FIDELITY_COLUMNS: Final[list[dict[str, Any]]] = [
    {"name": "model", "label": "Model", "field": "model", "align": "left"},
    {"name": "agent", "label": "Agent", "field": "agent", "align": "left"},
    {"name": "steps", "label": "Steps", "field": "steps"},
    {"name": "extended", "label": "Extended", "field": "extended"},
    {"name": "client", "label": "Forked by the client", "field": "client"},
    {"name": "template", "label": "By the template", "field": "template"},
    {"name": "tokenizer", "label": "By the tokenizer", "field": "tokenizer"},
    {"name": "side", "label": "Side calls", "field": "side"},
    {"name": "drift", "label": "Drift", "field": "drift"},
]

_X: Final = "policy version"


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page."""
    view = OverviewView(parent, visit)

    async def show() -> None:
        view.show(await asyncio.to_thread(read_overview, visit.pool))

    await follow(visit, show)


class OverviewView:
    """The widgets of the page; `show` fills them in place, so that nothing flickers."""

    def __init__(self, parent: ui.column, visit: Visit) -> None:
        """Build them, empty, in `parent`."""
        self._visit = visit
        with parent:
            self._empty = ui.card().classes("w-full")
            with self._empty:
                ui.markdown(_EMPTY)
            with ui.row().classes("w-full gap-4 items-stretch"):
                self._tiles = {name: Tile(name) for name in _TILES}
            with ui.card().classes("w-full") as self._curve_card:
                heading("Mean reward of each update")
                self._chart = ui.echart(lines([], _X)).classes("w-full h-64")
            with ui.card().classes("w-full") as self._fidelity_card:
                heading("Do prompts go on from what was sampled?")
                self._fidelity = ui.table(rows=[], columns=_FIDELITY_COLUMNS).props("flat dense").classes("w-full")
            with ui.card().classes("w-full") as self._table_card:
                self._count = heading("")
                self._table = ui.table(rows=[], columns=_COLUMNS, row_key="id").props("flat dense").classes("w-full")
                self._table.add_slot("body-cell-id", TRAJECTORY_CELL)
                self._table.add_slot("body-cell-task", LONG_CELL)
                self._table.add_slot("body-cell-status", STATUS_CELL)

    def show(self, overview: Overview) -> None:
        """Fill in what was read."""
        stats = overview.stats
        self._empty.set_visibility(stats.trajectories == 0)
        self._table_card.set_visibility(stats.trajectories > 0)
        for name, (value, detail) in _figures(stats).items():
            self._tiles[name].show(value, detail)
        self._curve_card.set_visibility(bool(overview.curves))
        self._chart.options.clear()
        self._chart.options.update(lines([line(curve.run, curve.points) for curve in overview.curves], _X))
        self._chart.update()
        self._fidelity_card.set_visibility(bool(overview.fidelity))
        self._fidelity.rows = [{**asdict(line), "drift": f"{line.drift:.1%}"} for line in overview.fidelity]
        more = stats.trajectories > NEWEST
        self._count.text = f"The newest {NEWEST} of {stats.trajectories:,} trajectories" if more else "Trajectories"
        self._table.rows = [_row(summary, self._visit) for summary in overview.newest]


def _figures(stats: PoolStats) -> dict[str, tuple[str, str]]:
    """(figure, detail) of each tile."""
    by_status = ", ".join(f"{count:,} {status}" for status, count in stats.trajectories_by_status if count)
    figures = (
        (f"{stats.groups:,}", f"{stats.groups_ready:,} ready"),
        (f"{stats.trajectories:,}", by_status or "none yet"),
        (f"{stats.steps:,}", f"{stats.trajectories_rewarded:,} trajectories rewarded"),
        (f"{stats.response_tokens:,}", f"after {stats.prompt_tokens:,} of prompt"),
        (f"{stats.policy_version:,}", f"{stats.updates:,} updates"),
    )
    return dict(zip(_TILES, figures, strict=True))


def _row(summary: TrajectorySummary, visit: Visit) -> dict[str, object]:
    low, high = summary.policy_version_min, summary.policy_version_max
    return {
        "id": summary.info.id,
        "task": summary.info.task_id,
        "by": summary.info.agent or summary.info.source,
        "status": summary.status,
        "reward": "" if summary.reward is None else f"{summary.reward:.3g}",
        "steps": summary.steps,
        "tokens": summary.response_tokens,
        "version": "" if low is None else f"{low}" if low == high else f"{low} to {high}",
        "opened": visit.time(summary.info.created_at, "%m-%d %H:%M:%S"),
    }
