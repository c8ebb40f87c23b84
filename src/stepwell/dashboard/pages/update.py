"""One update: what it measured, what it was trained on with the credit of each step, and what was not taken."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from nicegui import ui

from stepwell.dashboard.addresses import link, trajectory_address, update_address
from stepwell.dashboard.charts import lines
from stepwell.dashboard.reading.update import GroupCredit, UpdateView, read_update_view
from stepwell.dashboard.reading.updates import measured
from stepwell.dashboard.tables import Table, number, text
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import Tile, figure, heading
from stepwell.errors import NotFound, PoolError
from stepwell.pool.credit import StepCredit

_TILES: Final = {  # metric: (name, form)
    "reward_mean": ("Mean reward", ".3f"),
    "trained_steps": ("Steps trained on", ",.0f"),
    "trained_tokens": ("Tokens trained on", ",.0f"),
    "staleness_mean": ("Mean staleness", ".2f"),
    "seconds_learn": ("Seconds of learning", ".2f"),
}
_METRICS: Final = (text("name", "Metric"), number("value", "Value", None))
_GROUPS: Final = (
    text("group", "Group"),
    number("trajectories", "Trajectories"),
    number("steps", "Steps"),
    number("tokens", "Tokens"),
    number("lowest", "Lowest advantage", 3),
    number("highest", "Highest", 3),
    number("weight", "Share in the loss", 4),
    number("left_out", "Steps left out"),
)
_STEPS: Final = (
    text("trajectory", "Trajectory"),
    number("index", "Step"),
    number("tokens", "Tokens"),
    number("advantage", "Mean advantage", 4),
    number("weight", "Share in the loss", 5),
    text("left_out", "Left out, because"),
)
_REASONS: Final = {
    "side call": "a call beside the agent's work",
    "aborted": "its sampling was aborted",
    "tokens unknown": "its tokens are guessed from text",
    "no tokens": "nothing was sampled",
    "algorithm": "the algorithm wanted it not",
}
"""What the pool keeps as reasons, in words."""
_UNKNOWN: Final = (
    "Nobody kept what this update was trained on: it is older than that was kept, pruned, or the run has "
    "trainer.record_credit=false."
)
_BINS: Final = 30


async def build(parent: ui.column, visit: Visit, path: Mapping[str, str]) -> None:
    """The page of the update that `path` names."""
    run, version = path["run"], path["policy_version"]
    with parent:
        try:
            if not (version.isascii() and version.isdecimal() and len(version) < 19):
                raise NotFound(f"{version!r} is no policy version")
            view = await asyncio.to_thread(read_update_view, visit.pool, run, int(version))
        except NotFound as error:
            ui.label(f"There is nothing here: {error}.")
            ui.link("All updates", "/consumption")
            return
        except PoolError as error:
            ui.label(f"The pool cannot be read: {error}").classes("text-negative").props('role="alert"')
            return
        _show(view, visit)


def _show(view: UpdateView, visit: Visit) -> None:
    _head(view, visit)
    _figures(view)
    if view.credits is None:
        ui.label(_UNKNOWN).classes("sw-quiet")
    else:
        _credit(view, view.credits, visit)
    _not_taken(view)
    with ui.card().classes("w-full"):
        heading("All that was measured")
        metrics = Table(_METRICS, key="name", label="Metrics")
        metrics.fill([{"name": name, "value": value} for name, value in sorted(measured(view.update).items())])


def _head(view: UpdateView, visit: Visit) -> None:
    update = view.update
    with ui.row().classes("w-full items-baseline gap-x-6 gap-y-1"):
        heading(f"{update.run}, version {update.policy_version}").classes("text-lg")
        ui.label(visit.time(update.created_at)).classes("sw-quiet")
        if view.before is not None:
            ui.link(f"← version {view.before}", update_address(update.run, view.before))
        if view.after is not None:
            ui.link(f"version {view.after} →", update_address(update.run, view.after))
        if view.credits is not None:
            tree = link("/optimisation", run=update.run, version=update.policy_version)
            ui.link("Its prefix tree", tree)


def _figures(view: UpdateView) -> None:
    metrics = measured(view.update)
    published = metrics.get("seconds_publish")
    details = {"seconds_learn": f"{figure(published, '.2f')} s to publish"} if published is not None else {}
    with ui.row().classes("w-full gap-4 items-stretch"):
        for metric, (name, form) in _TILES.items():
            if metric in metrics:
                Tile(name).show(figure(metrics[metric], form), details.get(metric, ""))


def _credit(view: UpdateView, credits: tuple[StepCredit, ...], visit: Visit) -> None:
    trained = [line for line in credits if not line.left_out]
    chosen = visit.query.get("group", "")
    with ui.card().classes("w-full"):
        heading("Credit: how many steps got which mean advantage")
        ui.echart(_histogram([line.advantage for line in trained])).classes("w-full h-56")
    with ui.card().classes("w-full"):
        heading("What it was trained on")
        ui.label("A group's name shows its steps below.").classes("text-sm sw-quiet")
        groups = Table(_GROUPS, key="group", label="Groups of this update")
        groups.fill([_group_row(one, visit) for one in view.groups])
    lines_of = [line for line in credits if line.group_id == chosen]
    if lines_of:
        with ui.card().classes("w-full"):
            heading(f"The steps of {chosen}")
            steps = Table(_STEPS, key="step", label="Steps of the group")
            steps.fill([_step_row(line) for line in lines_of])


def _group_row(one: GroupCredit, visit: Visit) -> dict[str, object]:
    return {
        "group": one.group_id,
        "group_href": link(visit.path, group=one.group_id),
        "trajectories": one.trajectories,
        "steps": one.steps,
        "tokens": one.tokens,
        "lowest": one.lowest,
        "highest": one.highest,
        "weight": one.weight,
        "left_out": one.left_out,
    }


def _step_row(line: StepCredit) -> dict[str, object]:
    return {
        "step": line.step_id,
        "trajectory": line.trajectory_id,
        "trajectory_href": trajectory_address(line.trajectory_id, step=line.index),
        "index": line.index,
        "tokens": line.tokens,
        "advantage": None if line.left_out else line.advantage,
        "weight": None if line.left_out else line.weight,
        "left_out": _REASONS.get(line.left_out, line.left_out),
    }


def _not_taken(view: UpdateView) -> None:
    with ui.card().classes("w-full gap-1"):
        heading("Other data that was not taken")
        for reason, steps in view.left_out:
            ui.label(f"{steps:,} steps of its groups: {_REASONS.get(reason, reason)}")
        for reason, units, epoch in view.dropped:
            ui.label(f"{units:,} units, over the whole run (epoch {epoch}): {reason}")
        if not (view.left_out or view.dropped):
            ui.label("None: all that was handed over was used, and nothing was held back.").classes("sw-quiet")


def _histogram(advantages: list[float]) -> dict[str, Any]:
    advantages = [advantage for advantage in advantages if math.isfinite(advantage)]
    counts, edges = np.histogram(advantages, bins=_BINS) if advantages else (np.zeros(0), np.zeros(1))
    width = float(edges[-1] - edges[0]) / _BINS
    centres = [float(edge) + width / 2 for edge in edges[:-1]]
    data = [[round(x, 4), int(count)] for x, count in zip(centres, counts, strict=True)]
    bars = {"type": "bar", "name": "steps", "barWidth": "95%", "data": data}
    options = lines([bars], "mean advantage", "steps")
    options["xAxis"] |= {"minInterval": 0, "min": None, "max": None}
    options["yAxis"] |= {"min": 0, "minInterval": 1}
    return options
