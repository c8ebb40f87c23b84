"""The first page: how much was collected, what it taught, and the newest trajectories."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from nicegui import ui

from stepwell.dashboard.reading import NEWEST, Curve, Overview
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
    {"name": "opened", "label": "Opened (UTC)", "field": "opened"},
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

# Vue templates: `{{ }}` and `:href` escape what they are given.
_ID_CELL: Final = """
<q-td :props="props" style="max-width: 21em; overflow: hidden; text-overflow: ellipsis">
  <a :href="'/trajectory/' + encodeURIComponent(props.value)" class="text-primary">{{ props.value }}</a>
</q-td>"""
_TASK_CELL: Final = """
<q-td :props="props" style="max-width: 14em; overflow: hidden; text-overflow: ellipsis" :title="props.value">
  {{ props.value }}
</q-td>"""
_STATUS_CELL: Final = """
<q-td :props="props">
  <q-badge outline
    :color="{terminated: 'positive', truncated: 'orange-8', failed: 'negative'}[props.value] || 'grey'">
    {{ props.value }}
  </q-badge>
</q-td>"""

_GREY: Final = "#8a8f98"  # readable on white and on black, since a canvas does not follow the page's colours


class OverviewView:
    """The widgets of the page; `show` fills them in place, so that nothing flickers."""

    def __init__(self, parent: ui.column) -> None:
        """Build them, empty, in `parent`."""
        with parent:
            self._empty = ui.card().classes("w-full")
            with self._empty:
                ui.markdown(_EMPTY)
            with ui.row().classes("w-full gap-4 items-stretch"):
                self._tiles = {name: _Tile(name) for name in _TILES}
            with ui.card().classes("w-full") as self._curve_card:
                ui.label("Mean reward of each update").classes("font-medium")
                self._chart = ui.echart(_chart([])).classes("w-full h-64")
            with ui.card().classes("w-full") as self._fidelity_card:
                ui.label("Do prompts go on from what was sampled?").classes("font-medium")
                self._fidelity = ui.table(rows=[], columns=_FIDELITY_COLUMNS).props("flat dense").classes("w-full")
            with ui.card().classes("w-full") as self._table_card:
                self._count = ui.label().classes("font-medium")
                self._table = ui.table(rows=[], columns=_COLUMNS, row_key="id").props("flat dense").classes("w-full")
                self._table.add_slot("body-cell-id", _ID_CELL)
                self._table.add_slot("body-cell-task", _TASK_CELL)
                self._table.add_slot("body-cell-status", _STATUS_CELL)

    def show(self, overview: Overview) -> None:
        """Fill in what was read."""
        stats = overview.stats
        self._empty.set_visibility(stats.trajectories == 0)
        self._table_card.set_visibility(stats.trajectories > 0)
        for name, (value, detail) in _figures(stats).items():
            self._tiles[name].show(value, detail)
        self._curve_card.set_visibility(bool(overview.curves))
        self._chart.options.clear()
        self._chart.options.update(_chart([_series(curve) for curve in overview.curves]))
        self._chart.update()
        self._fidelity_card.set_visibility(bool(overview.fidelity))
        self._fidelity.rows = [{**asdict(line), "drift": f"{line.drift:.1%}"} for line in overview.fidelity]
        more = stats.trajectories > NEWEST
        self._count.text = f"The newest {NEWEST} of {stats.trajectories:,} trajectories" if more else "Trajectories"
        self._table.rows = [_row(summary) for summary in overview.newest]


class _Tile:
    """A figure with its name and a line about it."""

    def __init__(self, name: str) -> None:
        with ui.card().classes("flex-1 gap-0 min-w-36"):
            ui.label(name).classes("text-sm sw-quiet")
            self._value = ui.label().classes("text-2xl font-semibold")
            self._detail = ui.label().classes("text-xs sw-quiet")

    def show(self, value: str, detail: str) -> None:
        self._value.text, self._detail.text = value, detail


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


def _row(summary: TrajectorySummary) -> dict[str, object]:
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
        "opened": datetime.fromtimestamp(summary.info.created_at, UTC).strftime("%m-%d %H:%M:%S"),
    }


def _series(curve: Curve) -> dict[str, object]:
    points = [list(point) for point in curve.points]
    return {"type": "line", "name": curve.run, "data": points, "showSymbol": len(points) < 40, "symbolSize": 5}


def _chart(series: list[dict[str, object]]) -> dict[str, object]:
    """Options of the chart. Its tooltip is drawn, not made of HTML, so a run's name stays text."""
    axis = {"axisLabel": {"color": _GREY}, "nameTextStyle": {"color": _GREY}, "splitLine": {"show": False}}
    grid_line = {"show": True, "lineStyle": {"color": _GREY, "opacity": 0.25}}
    return {
        "animation": False,
        "grid": {"left": 48, "right": 24, "top": 32, "bottom": 40},
        "legend": {"show": len(series) > 1, "top": 0, "textStyle": {"color": _GREY}},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "xAxis": {**axis, "type": "value", "name": "policy version", "nameLocation": "middle", "nameGap": 26}
        | {"minInterval": 1, "min": "dataMin", "max": "dataMax"},
        "yAxis": {**axis, "type": "value", "scale": True, "splitLine": grid_line},
        "series": series,
    }
