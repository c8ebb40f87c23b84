"""The stage of collection: what comes in, from whom, how fast, what goes wrong, and who is at work right now."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nicegui import ui

from stepwell.dashboard.addresses import trajectory_address
from stepwell.dashboard.charts import AXIS, GREY, GRID_LINE
from stepwell.dashboard.frame import follow
from stepwell.dashboard.reading.collection import USUAL, WINDOWS, Collection, read_collection
from stepwell.dashboard.tables import Column, Table, number, right, text
from stepwell.dashboard.trajectories import TRAJECTORY
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import Tile, heading
from stepwell.pool.activity import Activity, Arrivals, Session

_NOTHING: Final = """\
Nothing came in within this window. Choose a longer one, or point an agent's base URL at the gateway \
(`stepwell serve`): each of its calls appears here as a step.
"""
_TILES: Final = ("Trajectories", "Steps", "Tokens sampled", "Failed", "Open now")

_ARRIVALS: Final = (
    text("source", "Source"),
    text("agent", "Agent", clip=True),
    text("channel", "Channel", clip=True),
    number("trajectories", "Trajectories"),
    right("rate", "Per minute"),
    number("steps", "Their steps"),
    number("tokens", "Their tokens"),
    number("failed", "Failed"),
)
_PROBLEMS: Final = (
    text("what", "What went wrong"),
    text("why", "Why", clip=True),
    number("count", "Count"),
)
_SESSIONS: Final = (
    TRAJECTORY,
    text("task", "Task", clip=True),
    text("agent", "Agent", clip=True),
    text("channel", "Channel", clip=True),
    number("steps", "Steps"),
    number("tokens", "Tokens"),
    right("age", "Last step"),
)


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page."""
    window = visit.query.get("window", "")
    view = CollectionView(parent, visit, window if window in WINDOWS else USUAL)
    await follow(visit, view.read)


class CollectionView:
    """The widgets of the page; `read` fills them in place, so that nothing flickers."""

    def __init__(self, parent: ui.column, visit: Visit, window: str) -> None:
        """Build them, empty, in `parent`."""
        self._visit = visit
        with parent:
            with ui.row().classes("items-center gap-3"):
                ui.label("Within the last").classes("text-sm")
                self._window = ui.toggle(list(WINDOWS), value=window, on_change=self._choose)
                self._window.props(
                    'no-caps dense unelevated padding="2px 10px" toggle-color=blue-9 aria-label="Window of time"'
                )
            with ui.row().classes("w-full gap-4 items-stretch"):
                self._tiles = {name: Tile(name) for name in _TILES}
            self._nothing = ui.card().classes("w-full")
            with self._nothing:
                ui.markdown(_NOTHING)
            with ui.row().classes("w-full gap-4 items-stretch") as self._charts:
                self._throughput = _chart("Throughput", "Steps and sampled tokens in each interval")
                self._latency = _chart("Latency", "Seconds from a request to its last token, in each interval")
            self._arrivals = _table("Trajectories opened, by where they come from", _ARRIVALS, "key")
            self._problems = _table("What went wrong", _PROBLEMS, "key")
            self._sessions = _table("Open now: click one to follow it", _SESSIONS, "id")

    async def read(self) -> None:
        """Read the window and show it."""
        self.show(await asyncio.to_thread(read_collection, self._visit.pool, str(self._window.value), time.time()))

    async def _choose(self) -> None:
        window = str(self._window.value)
        self._visit.remember(window="" if window == USUAL else window)
        await self.read()

    def show(self, collection: Collection) -> None:
        """Fill in what was read."""
        activity = collection.activity
        for name, (value, detail) in _figures(collection).items():
            self._tiles[name].show(value, detail)
        self._nothing.set_visibility(not (collection.trajectories or collection.steps))
        self._charts.set_visibility(collection.steps > 0)
        times = _times(activity, self._visit)
        _draw(self._throughput, _throughput(activity, times))
        _draw(self._latency, _latency(activity, times))
        _fill(self._arrivals, [_arrival(line, collection.minutes) for line in activity.arrivals])
        _fill(self._problems, _problem_rows(collection))
        _fill(self._sessions, [_session(session, collection.now) for session in activity.sessions])


def _chart(name: str, said: str) -> ui.echart:
    with ui.card().classes("flex-1 min-w-72 gap-1"):
        heading(name)
        ui.label(said).classes("text-xs sw-quiet")
        return ui.echart({}).classes("w-full h-56").props(f'role="img" aria-label="{said}"')


def _table(name: str, columns: Sequence[Column], key: str) -> Table:
    with ui.card().classes("w-full"):
        heading(name)
        return Table(columns, key=key, label=name)


def _draw(chart: ui.echart, options: dict[str, Any]) -> None:
    chart.options.clear()
    chart.options.update(options)
    chart.update()


def _fill(table: Table, rows: list[dict[str, object]]) -> None:
    """A card without rows is not shown."""
    table.fill(rows)
    if table.parent_slot is not None:
        table.parent_slot.parent.set_visibility(bool(rows))


def _figures(collection: Collection) -> dict[str, tuple[str, str]]:
    """(figure, detail) of each tile."""
    minutes, opened = collection.minutes, max(collection.trajectories, 1)
    figures = (
        (f"{collection.trajectories:,}", f"{_rate(collection.trajectories / minutes)} a minute"),
        (f"{collection.steps:,}", f"{_rate(collection.steps / minutes)} a minute, {collection.aborted:,} aborted"),
        (f"{collection.response_tokens:,}", f"{_rate(collection.response_tokens / minutes / 60)} a second"),
        (f"{collection.failed:,}", f"{collection.failed / opened:.1%} of the trajectories"),
        (f"{collection.activity.open:,}", "trajectories that have not ended, whenever opened"),
    )
    return dict(zip(_TILES, figures, strict=True))


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(activity: Activity, visit: Visit) -> list[str]:
    form = "%H:%M" if activity.until - activity.since <= 86_400 else "%m-%d %H:%M"
    form = "%H:%M:%S" if activity.until - activity.since <= 900 else form
    return [visit.time(interval.start, form) for interval in activity.intervals]


def _over_time(times: list[str], names: tuple[str, ...], series: list[dict[str, Any]]) -> dict[str, Any]:
    """A chart over intervals, with an axis on the left, and one on the right if there are two names."""
    axes = [
        {**AXIS, "type": "value", "name": name, "position": side, "minInterval": 0}
        | {"splitLine": GRID_LINE if side == "left" else {"show": False}}
        for name, side in zip(names, ("left", "right"), strict=False)
    ]
    return {
        "animation": False,
        "grid": {"left": 48, "right": 56 if len(names) > 1 else 16, "top": 40, "bottom": 28},
        "legend": {"top": 0, "type": "scroll", "textStyle": {"color": GREY}},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "xAxis": {**AXIS, "type": "category", "data": times},
        "yAxis": axes,
        "series": series,
    }


def _throughput(activity: Activity, times: list[str]) -> dict[str, Any]:
    steps = [interval.steps for interval in activity.intervals]
    tokens = [interval.response_tokens for interval in activity.intervals]
    series: list[dict[str, Any]] = [
        {"type": "bar", "name": "steps", "data": steps, "itemStyle": {"color": "#5470c6"}},
        {"type": "line", "name": "tokens sampled", "data": tokens, "yAxisIndex": 1, "showSymbol": False}
        | {"itemStyle": {"color": "#ea7c2b"}},
    ]
    return _over_time(times, ("steps", "tokens"), series)


def _latency(activity: Activity, times: list[str]) -> dict[str, Any]:
    series = [
        {"type": "line", "name": name, "data": values, "showSymbol": False, "itemStyle": {"color": colour}}
        for name, colour, values in (
            ("p50", "#5470c6", [_seconds(interval.latency_p50) for interval in activity.intervals]),
            ("p95", "#ea7c2b", [_seconds(interval.latency_p95) for interval in activity.intervals]),
        )
    ]
    return _over_time(times, ("seconds",), series)


def _seconds(latency: float | None) -> float | None:
    return None if latency is None else round(latency, 3)


def _arrival(line: Arrivals, minutes: float) -> dict[str, object]:
    return {
        "key": f"{line.origin}",
        "source": line.origin.source,
        "agent": line.origin.agent,
        "channel": line.origin.channel,
        "trajectories": line.trajectories,
        "rate": _rate(line.trajectories / minutes),
        "steps": line.steps,
        "tokens": line.response_tokens,
        "failed": line.failed or None,
    }


def _problem_rows(collection: Collection) -> list[dict[str, object]]:
    activity = collection.activity
    aborted = [("the client or the engine went away", collection.aborted)] if collection.aborted else []
    kinds = (("trajectory failed", activity.failures), ("step aborted", aborted), ("group dropped", activity.dropped))
    return [
        {"key": f"{what} {why}", "what": what, "why": why or "not said", "count": count}
        for what, reasons in kinds
        for why, count in reasons
    ]


def _session(session: Session, now: float) -> dict[str, object]:
    last = session.last_step_at
    return {
        "id": session.info.id,
        "id_href": trajectory_address(session.info.id),
        "task": session.info.task_id,
        "agent": session.info.agent,
        "channel": session.channel,
        "steps": session.steps,
        "tokens": session.response_tokens,
        "age": "none yet" if last is None else f"{_age(now - last)} ago",
    }


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
