"""Training runs beside each other: curves, settings that differ, evaluations, and how their agents acted."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from nicegui import ui

from stepwell.dashboard.frame import follow
from stepwell.dashboard.learning import LearningCurves
from stepwell.dashboard.reading.experiments import USE, RunSummary, Use, differences, seeds, summaries, tool_use
from stepwell.dashboard.reading.updates import UpdateLog
from stepwell.dashboard.runs import RunFolder
from stepwell.dashboard.tables import Table, number, text
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading

_EMPTY: Final = """\
No run has made an update yet. `stepwell demo` trains a small model in minutes; `stepwell train RECIPE` starts a run, \
and each of its updates appears here. Give runs of one pool different names, and they can be compared.
"""
_NO_RECIPES: Final = (
    "The settings of these runs cannot be compared: their folders, which hold recipe.yaml, are not beside this pool. "
    "Open the dashboard on the folder that holds them."
)

_RUNS: Final = (
    text("run", "Run"),
    number("updates", "Updates"),
    number("version", "Version"),
    number("last", "Last reward", 3),
    number("best", "Best reward", 3),
    number("tokens", "Sampled tokens"),
    number("seconds", "Seconds"),
    text("first", "First update"),
    text("latest", "Last update"),
)
_SCORES: Final = (
    text("run", "Run"),
    text("benchmark", "Benchmark"),
    text("model", "Model"),
    text("kind", "Tasks"),
    text("metric", "Metric"),
    number("value", "Value", 3),
    number("low", "From", 3),
    number("high", "To", 3),
    number("items", "Items"),
)
_USE_NAMES: Final = {
    "steps_per_trajectory": "Steps per trajectory",
    "turns_per_trajectory": "Turns per trajectory",
    "tool_calls_per_trajectory": "Tool calls per trajectory",
    "valid_call_rate": "Share of valid calls",
    "prompt_tokens_per_trajectory": "Prompt tokens",
    "response_tokens_per_trajectory": "Sampled tokens",
    "failed_rate": "Share that failed",
}
_USE: Final = (
    text("run", "Run"),
    text("kind", "Tasks"),
    *(number(name, _USE_NAMES[name], 0 if "tokens" in name else 2) for name in USE),
)


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page."""
    folders = await asyncio.to_thread(visit.runs)
    with parent:
        view = ExperimentsView(visit, folders)
        log = UpdateLog()

        async def show() -> None:
            if await asyncio.to_thread(log.read, visit.pool) or not log.runs:
                view.show(log)

        await follow(visit, show)


class ExperimentsView:
    """The widgets of the page; they are filled in place."""

    def __init__(self, visit: Visit, folders: Mapping[str, RunFolder]) -> None:
        """Build them, empty."""
        self._visit, self._folders = visit, folders
        self._recipes = {run: folder.recipe for run, folder in folders.items()}
        self._log = UpdateLog()
        self._empty = ui.card().classes("w-full")
        with self._empty:
            ui.markdown(_EMPTY)
        self._content = ui.column().classes("w-full gap-4")
        with self._content:
            with ui.card().classes("w-full"):
                heading("Runs")
                self._runs = Table(_RUNS, key="run", label="Runs")
            with ui.card().classes("w-full"):
                heading("Curves")
                self._curves = LearningCurves(visit.query, self._chosen, partial(seeds, recipes=self._recipes))
            with ui.card().classes("w-full"):
                heading("Settings in which the chosen runs differ")
                self._same = ui.label().classes("sw-quiet")
                self._settings = Table((), key="setting", label="Settings in which the chosen runs differ")
            with ui.card().classes("w-full") as self._use_card:
                heading("How agents acted, over each run's last updates")
                self._use = Table(_USE, key="key", label="How agents acted")
            with ui.card().classes("w-full") as self._scores_card:
                heading("Evaluations")
                self._scores = Table(_SCORES, key="key", label="Evaluations")

    def show(self, log: UpdateLog) -> None:
        """Fill in what was read."""
        self._log = log
        self._empty.set_visibility(not log.runs)
        self._content.set_visibility(bool(log.runs))
        self._runs.fill([_run(one, self._visit) for one in summaries(log)])
        self._curves.show(log)
        self._compare()

    def _chosen(self) -> None:
        self._visit.remember(**self._curves.state)
        self._compare()

    def _compare(self) -> None:
        """What depends on the runs that are chosen."""
        runs = self._curves.runs
        self._show_settings({run: self._recipes[run] for run in runs if run in self._recipes})
        use = tool_use(self._log, runs)
        self._use_card.set_visibility(bool(use))
        self._use.fill([_use(one) for one in use])
        self._scores.fill(_scores({run: self._folders[run] for run in runs if run in self._folders}))
        self._scores_card.set_visibility(bool(self._scores.rows))

    def _show_settings(self, recipes: Mapping[str, Mapping[str, object]]) -> None:
        rows = differences(recipes)
        self._settings.set_visibility(bool(rows))
        self._same.set_visibility(not rows)
        self._same.text = "They do not differ." if len(recipes) > 1 else "Choose two runs or more above."
        if len(recipes) < min(len(self._curves.runs), 2):
            self._same.text = _NO_RECIPES
        places = {run: f"run{place}" for place, run in enumerate(recipes)}  # a run may be called like another field
        self._settings.columns = [text("setting", "Setting"), *(text(place, run) for run, place in places.items())]
        named = [{"setting": name} | {places[run]: value for run, value in values.items()} for name, values in rows]
        self._settings.fill(named)


def _run(one: RunSummary, visit: Visit) -> dict[str, object]:
    return {
        "run": one.run,
        "updates": one.updates,
        "version": one.version,
        "last": one.last,
        "best": one.best,
        "tokens": one.tokens,
        "seconds": one.seconds,
        "first": visit.time(one.first_at),
        "latest": visit.time(one.last_at),
    }


def _use(one: Use) -> dict[str, object]:
    named = {"key": f"{one.run}/{one.kind}", "run": one.run, "kind": one.kind or "all"}
    return named | {name: one.figures.get(name) for name in USE}


def _scores(folders: Mapping[str, RunFolder]) -> Sequence[dict[str, object]]:
    return [
        {
            "key": f"{run}/{number}",
            "run": run,
            "benchmark": score.benchmark,
            "model": score.model,
            "kind": score.kind or "all",
            "metric": score.metric,
            "value": score.value,
            "low": score.low,
            "high": score.high,
            "items": score.items,
        }
        for run, folder in folders.items()
        for number, score in enumerate(folder.scores)
    ]
