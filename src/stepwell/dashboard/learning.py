"""Learning curves of several runs over each other, of any metric: with what to choose, which goes into the address."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nicegui import ui

from stepwell.dashboard.charts import line, lines
from stepwell.dashboard.reading.updates import AXES, Axis, Curve, UpdateLog, curve, mean_curve

SHOWN: Final = 6
"""Runs whose curves are shown unless others are chosen."""
_SEPARATOR: Final = "/"  # no name of a run holds it
_PALETTE: Final = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#14b8a6", "#ec4899", "#84cc16", "#f97316")


class LearningCurves:
    """The chart with its choices. `show` fills it; a choice draws anew and tells `remember`."""

    def __init__(
        self,
        query: Mapping[str, str],
        remember: Callable[[], None],
        together: Callable[[Sequence[str]], Sequence[Sequence[str]]] | None = None,
    ) -> None:
        """Build it, empty.

        Args:
            query: the deep link's state; what is wrong in it is left out.
            remember: called after each choice, once `state` is what was chosen.
            together: which of some runs differ only in their seed; None: averages are not offered.
        """
        self._remember, self._together = remember, together
        self._log = UpdateLog()
        self._ready = False
        """Whether a change of a choice is somebody's, and not of `show`."""
        self._asked = [name for name in query.get("runs", "").split(_SEPARATOR) if name]
        self._metric_asked = query.get("metric", "")
        with ui.row().classes("w-full items-end gap-4"):
            self._runs = ui.select([], label="Runs", multiple=True, on_change=self._chosen)
            self._runs.props("use-chips dense outlined").classes("min-w-48 grow")
            self._metric = ui.select([], label="Metric", with_input=True, on_change=self._chosen)
            self._metric.props("dense outlined").classes("min-w-48")
            axis = query.get("x", "")
            axis = axis if axis in AXES else "version"
            self._axis = ui.select(dict(AXES), label="Over", value=axis, on_change=self._chosen)
            self._axis.props("dense outlined").classes("min-w-48")
            mean = query.get("seeds") == "mean"
            self._mean = ui.checkbox("Average runs that differ only in their seed", value=mean, on_change=self._chosen)
            self._mean.set_visibility(together is not None)
        self._nothing = ui.label("None of these runs has measured that.").classes("sw-quiet")
        self._chart = ui.echart(lines([], "")).classes("w-full h-80")

    @property
    def runs(self) -> list[str]:
        """Those that are chosen."""
        return list(self._runs.value or [])

    @property
    def state(self) -> dict[str, object]:
        """What was chosen, for a deep link; nothing where it is what one sees anyway."""
        axis = self._axis.value if self._axis.value != "version" else ""
        metric = self._metric.value if self._metric.value != next(iter(self._log.metrics), "") else ""
        runs = _SEPARATOR.join(self._asked)
        return {"runs": runs, "metric": metric, "x": axis, "seeds": "mean" if self._mean.value else ""}

    def show(self, log: UpdateLog) -> None:
        """Draw what was read; choices stay. Until runs are chosen, those with the newest updates are shown."""
        self._log, self._ready = log, False
        wanted = [run for run in self._asked if run in log.runs] or log.runs[:SHOWN]
        metrics = log.metrics
        metric = self._metric.value or self._metric_asked
        self._runs.set_options(log.runs, value=wanted)
        self._metric.set_options(metrics, value=metric if metric in metrics else next(iter(metrics), None))
        self._ready = True
        self._draw()

    def _chosen(self) -> None:
        if self._ready:
            usual = self.runs == self._log.runs[:SHOWN]
            self._asked = [] if usual else self.runs
            self._draw()
            self._remember()

    def _draw(self) -> None:
        drawn = [made for made in self._curves() if made.points]
        axis: Axis = self._axis.value
        options = lines([], AXES[axis])
        options["series"] = [one for number, made in enumerate(drawn) for one in _series(made, number)]
        options["legend"] |= {"show": len(drawn) > 1, "data": [made.name for made in drawn]}
        if axis == "hours":
            options["xAxis"]["minInterval"] = 0
        self._nothing.set_visibility(not drawn)
        self._chart.set_visibility(bool(drawn))
        self._chart.options.clear()
        self._chart.options.update(options)
        self._chart.update()

    def _curves(self) -> list[Curve]:
        metric, axis = str(self._metric.value or ""), self._axis.value
        groups: Sequence[Sequence[str]] = [[run] for run in self.runs]
        if self._together is not None and self._mean.value:
            groups = self._together(self.runs)
        return [
            curve(group[0], self._log.of(group[0]), metric, axis)
            if len(group) == 1
            else mean_curve({run: self._log.of(run) for run in group}, metric, axis)
            for group in groups
        ]


def _series(made: Curve, number: int) -> list[dict[str, Any]]:
    """The line, and under it its band: the low edge, unseen, and on it the rest as an area."""
    colour = _PALETTE[number % len(_PALETTE)]
    drawn = line(made.name, made.points) | {"itemStyle": {"color": colour}, "lineStyle": {"color": colour}}
    if not made.band:
        return [drawn]
    unseen = {"type": "line", "stack": f"band {number}", "stackStrategy": "all", "symbol": "none", "silent": True}
    unseen |= {"lineStyle": {"opacity": 0}, "tooltip": {"show": False}}
    low = unseen | {"data": [[x, bottom] for x, bottom, _ in made.band]}
    high = unseen | {"data": [[x, top - bottom] for x, bottom, top in made.band]}
    return [low, high | {"areaStyle": {"color": colour, "opacity": 0.2}}, drawn]
