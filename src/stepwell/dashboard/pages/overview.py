"""The first page: the five stages of the data's life, what needs a person, and what was learnt."""

import asyncio
from collections.abc import Mapping
from typing import Final

from nicegui import ui

from stepwell.dashboard.charts import line, lines
from stepwell.dashboard.frame import follow
from stepwell.dashboard.learning import SHOWN
from stepwell.dashboard.reading.overview import NEWEST, Overview, Problem, Stage, read_overview
from stepwell.dashboard.reading.updates import AXES, REWARD_METRIC, UpdateLog, curve
from stepwell.dashboard.tables import Table
from stepwell.dashboard.trajectories import COLUMNS, row
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading

_EMPTY: Final = """\
Nothing has been collected yet. Point an agent's base URL at the gateway (`stepwell serve`), and each of its calls \
appears here as a step; or run `stepwell demo` to watch a small model learn.
"""

_COLUMNS: Final = [column for column in COLUMNS if column["name"] != "verdict"]

_CURVES: Final = (
    (REWARD_METRIC, "Mean reward of each update"),
    ("staleness_mean", "Staleness: updates between sampling and training"),
)


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page."""
    view, log = OverviewView(parent, visit), UpdateLog()

    async def show() -> None:
        view.show(await asyncio.to_thread(read_overview, visit.pool, log, visit.drift), log)

    await follow(visit, show)


class OverviewView:
    """The widgets of the page; `show` fills them in place, so that nothing flickers."""

    def __init__(self, parent: ui.column, visit: Visit) -> None:
        """Build them, empty, in `parent`."""
        self._visit = visit
        self._problems_shown: tuple[Problem, ...] | None = None
        with parent:
            self._empty = ui.card().classes("w-full")
            with self._empty:
                ui.markdown(_EMPTY)
            with ui.element("ol").classes("sw-flow"):
                self._stages = [_StageCard() for _ in range(5)]
            with ui.card().classes("w-full gap-2") as self._problem_card:
                heading("What needs a person")
                self._problems = ui.column().classes("w-full gap-1")
            with ui.row().classes("w-full gap-4 items-stretch"):
                self._charts = [_Chart(metric, title) for metric, title in _CURVES]
            with ui.card().classes("w-full") as self._table_card:
                self._count = heading("")
                self._table = Table(_COLUMNS, key="id", label="The newest trajectories", page=0, sortable=False)

    def show(self, overview: Overview, log: UpdateLog) -> None:
        """Fill in what was read."""
        stats = overview.stats
        self._empty.set_visibility(stats.trajectories == 0)
        self._table_card.set_visibility(stats.trajectories > 0)
        for card, stage in zip(self._stages, overview.stages, strict=True):
            card.show(stage)
        self._problem_card.set_visibility(stats.trajectories > 0)
        self._show_problems(overview.problems)
        for chart in self._charts:
            chart.show(log)
        more = stats.trajectories > NEWEST
        self._count.text = f"The newest {NEWEST} of {stats.trajectories:,} trajectories" if more else "Trajectories"
        self._table.fill([row(summary, self._visit) for summary in overview.newest])

    def _show_problems(self, problems: tuple[Problem, ...]) -> None:
        if problems == self._problems_shown:  # a line that one is about to click must not move for nothing
            return
        self._problems_shown = problems
        self._problems.clear()
        with self._problems:
            for problem in problems:
                with ui.row().classes("items-start no-wrap gap-2 w-full"):
                    icon = ui.icon("error" if problem.urgent else "info").props("aria-hidden=true")
                    icon.classes("text-lg text-negative" if problem.urgent else "text-lg sw-quiet")
                    ui.link(problem.what, problem.path).classes("sw-text")
            if not problems:
                ui.label("Nothing: groups become ready, nothing drifts, nobody waits.").classes("sw-quiet")


class _StageCard:
    """A stage in figures; all of it leads to the stage's page."""

    def __init__(self) -> None:
        with ui.element("li"):
            self._link = ui.link(target="/").classes("sw-stage")
        with self._link:
            self._name = ui.label().classes("text-sm sw-quiet")
            with ui.row().classes("items-baseline gap-1"):
                self._figure = ui.label().classes("text-2xl font-semibold")
                self._unit = ui.label().classes("text-sm")
            self._details = [ui.label().classes("text-xs sw-quiet") for _ in range(3)]

    def show(self, stage: Stage) -> None:
        """Fill it."""
        self._link.props(f'href="{stage.path}"')
        self._name.text, self._figure.text, self._unit.text = stage.name, stage.figure, stage.unit
        for label, detail in zip(self._details, (*stage.details, "", ""), strict=False):
            label.text = detail


class _Chart:
    """A metric of all runs over their policy versions."""

    def __init__(self, metric: str, title: str) -> None:
        self._metric = metric
        with ui.card().classes("sw-chart") as self._card:
            heading(title)
            self._chart = ui.echart(lines([], AXES["version"])).classes("w-full h-64")

    def show(self, log: UpdateLog) -> None:
        """Draw it; a metric that no run has measured is not there."""
        curves = [curve(run, log.of(run), self._metric, "version") for run in log.runs[:SHOWN]]
        drawn = [line(one.name, one.points) for one in curves if one.points]
        self._card.set_visibility(bool(drawn))
        self._chart.options.clear()
        self._chart.options.update(lines(drawn, AXES["version"]))
        self._chart.update()
