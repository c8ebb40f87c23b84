"""Datasets: what was frozen, where it comes from, what one version has otherwise than another, and files of it."""

import asyncio
from collections.abc import Mapping
from typing import Final

from nicegui import ui

from stepwell.dashboard.addresses import link
from stepwell.dashboard.frame import follow
from stepwell.dashboard.pages.datasets.comparing import Comparing
from stepwell.dashboard.pages.datasets.exporting import Exporting
from stepwell.dashboard.reading.curation import described, written
from stepwell.dashboard.reading.datasets import full_name
from stepwell.dashboard.tables import Table, number, right, text
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading
from stepwell.pool.frozen import DatasetInfo

_EMPTY: Final = """\
No dataset yet. Choose trajectories on the page [Curation](/curation) and freeze them: a dataset never changes, can be \
leased by its name in as many epochs as you like, and is kept when the pool is pruned.
"""

_COLUMNS: Final = (
    text("name", "Dataset"),
    text("at", "Frozen"),
    text("unit", "Unit"),
    number("units", "Units"),
    number("trajectories", "Trajectories"),
    number("steps", "Steps"),
    number("tokens", "Tokens"),
    number("reward", "Mean reward", 3),
    right("versions", "Policy versions"),
    text("digest", "SHA-256"),
)


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page."""
    view = DatasetsView(parent, visit)

    async def show() -> None:
        view.show(await asyncio.to_thread(visit.pool.datasets))

    await follow(visit, show)


class DatasetsView:
    """The list, and what is known of the chosen one."""

    def __init__(self, parent: ui.column, visit: Visit) -> None:
        """Build the widgets, empty, in `parent`."""
        self._visit = visit
        self._chosen = visit.query.get("dataset", "")
        self._before = visit.query.get("before", "")
        self._found: dict[str, DatasetInfo] | None = None
        with parent:
            with ui.card().classes("w-full") as self._empty:
                ui.markdown(_EMPTY)
            with ui.column().classes("w-full gap-4") as self._all:
                with ui.card().classes("w-full"):
                    heading("Datasets")
                    self._table = Table(_COLUMNS, key="name", label="Datasets")
                self._detail = ui.column().classes("w-full gap-4")

    def show(self, datasets: list[DatasetInfo]) -> None:
        """Fill in what was read."""
        found = {full_name(one): one for one in datasets}
        self._empty.set_visibility(not found)
        self._all.set_visibility(bool(found))
        if found == self._found:  # an export under way must not be drawn anew
            return
        self._found = found
        self._table.fill([_row(one, self._visit) for one in datasets])
        self._show_chosen()

    def _show_chosen(self) -> None:
        self._detail.clear()
        found = self._found or {}
        if self._chosen not in found:  # a name alone stands for its newest version
            self._chosen = next((name for name, one in found.items() if one.name == self._chosen), "")
        if not self._chosen:
            return
        with self._detail:
            _provenance(found[self._chosen], self._visit)
            Exporting(self._visit, found[self._chosen])
            if len(found) > 1:
                Comparing(self._visit, found, self._chosen, self._before, self._compared)

    def _compared(self, before: str) -> None:
        self._before = before
        self._remember()

    def _remember(self) -> None:
        self._visit.remember(dataset=self._chosen, before=self._before)


def _provenance(dataset: DatasetInfo, visit: Visit) -> None:
    of = dataset.manifest
    facts = {
        "frozen": visit.time(dataset.created_at),
        "by": of.software,
        "the log up to": f"{of.cursor:,}",
        "agents": ", ".join(filter(None, of.agents)) or "not given",
        "sources": ", ".join(of.sources),
        "SHA-256": dataset.digest,
    }
    with ui.card().classes("w-full gap-2"):
        heading(full_name(dataset))
        with ui.row().classes("gap-x-8 gap-y-2"):
            for name, value in facts.items():
                with ui.column().classes("gap-0 max-w-full"):
                    ui.label(name).classes("text-xs sw-quiet")
                    ui.label(value).classes("sw-text font-mono text-xs" if name == "SHA-256" else "sw-text")
        ui.label("What was selected").classes("text-xs sw-quiet")
        for name, value in described(of.selection) or [("all that was ready", "")]:
            ui.label(f"{name}: {value}" if value else name).classes("sw-text")
        ui.link("Open this selection", link("/curation", selection=written(of.selection), unit=dataset.unit))


def _row(dataset: DatasetInfo, visit: Visit) -> dict[str, object]:
    of = dataset.manifest
    low, high = of.policy_version_min, of.policy_version_max
    return {
        "name": full_name(dataset),
        "name_href": link("/datasets", dataset=full_name(dataset)),
        "at": visit.time(dataset.created_at, "%Y-%m-%d %H:%M"),
        "unit": dataset.unit,
        "units": of.units,
        "trajectories": of.trajectories,
        "steps": of.steps,
        "tokens": of.tokens,
        "reward": of.reward_mean,
        "versions": "" if low is None else f"{low}" if low == high else f"{low} to {high}",
        "digest": dataset.digest[:12],
    }
