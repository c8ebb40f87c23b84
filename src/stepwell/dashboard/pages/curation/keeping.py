"""Keeping what was chosen: selections under a name, and datasets frozen of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from nicegui import ui

from stepwell.curation.selection import Selection
from stepwell.dashboard.addresses import link
from stepwell.dashboard.dialogs import confirmed, told
from stepwell.dashboard.reading.datasets import full_name
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading
from stepwell.errors import StepwellError
from stepwell.pool.frozen import DatasetInfo
from stepwell.pool.lease import Unit

_UNITS: Final[dict[Unit, tuple[str, str]]] = {
    "group": ("group", "groups"),
    "siblings": ("set of siblings", "sets of siblings"),
    "trajectory": ("trajectory", "trajectories"),
}
"""What one unit is called, and several."""
Load = Callable[[str, Selection], None]
"""Hears which saved selection was loaded or saved, and its name; empty: the one of that name was deleted."""


class Keeping:
    """Saves, loads and deletes selections, and freezes datasets."""

    def __init__(self, visit: Visit, load: Load) -> None:
        """Draw nothing yet."""
        self._visit = visit
        self._load = load
        self._selection = Selection()
        self._unit: Unit = "group"
        self._name = ""

    def hold(self, selection: Selection, unit: Unit, name: str, *, correct: bool = True) -> None:
        """What would be kept now; `name` is empty unless it is saved as it is.

        Unless the form is `correct`, it shows something else than `selection`, and nothing can be kept.
        """
        self._selection, self._unit, self._name = selection, unit, name
        if self._names.value != (name or None):
            self._names.set_value(name or None)
        may = not self._visit.read_only
        self._delete.set_enabled(may and bool(name))
        for button in (self._save, self._freeze):
            button.set_enabled(may and correct)
        self._about.text = f"All that is ready now, as {plural(unit)}, the rules applied, as the name's next version."

    def draw(self) -> None:
        """The saved selections, in the current slot."""
        with ui.card().classes("w-full gap-2"):
            heading("Saved selections")
            with ui.row().classes("w-full items-center gap-2"):
                self._names = ui.select([], label="Load one", on_change=lambda event: self._chosen(event.value))
                self._names.props("outlined dense").classes("grow min-w-40")
                self._save = self._button("Save as…", "save", self._ask_for_name)
                self._delete = self._button("Delete", "delete_outline", self._ask_to_delete)

    def draw_freezing(self) -> None:
        """What makes a dataset, in the current slot."""
        with ui.card().classes("w-full gap-2"):
            heading("Freeze it as a dataset")
            self._about = ui.label().classes("text-sm")
            with ui.row().classes("w-full items-center gap-2"):
                self._dataset = ui.input("Name of the dataset").props("outlined dense").classes("grow min-w-40")
                self._freeze = self._button("Freeze", "ac_unit", self._freeze_it)
                self._spinner = ui.spinner(size="sm")
                self._spinner.set_visibility(False)
            self._frozen = ui.column().classes("w-full gap-0").props('aria-live="polite"')

    async def list_names(self) -> None:
        """Bring the list of saved selections up to date."""
        names = await asyncio.to_thread(self._visit.pool.selections)
        if names != self._names.options:
            self._names.set_options(names, value=self._name if self._name in names else None)

    def _button(self, label: str, icon: str, act: Callable[[], Awaitable[None]]) -> ui.button:
        button = ui.button(label, icon=icon, on_click=lambda: self._safely(act)).props("outline no-caps")
        if self._visit.read_only:
            button.disable()
            button.tooltip(self._visit.read_only)
        return button

    async def _safely(self, act: Callable[[], Awaitable[None]]) -> None:
        if self._visit.read_only:
            ui.notify(self._visit.read_only, type="warning")
            return
        try:
            await act()
        except StepwellError as error:
            ui.notify(str(error), type="negative")

    async def _chosen(self, name: Any) -> None:
        if name is None or name == self._name:
            return
        try:
            self._load(name, await asyncio.to_thread(self._visit.pool.selection, name))
        except StepwellError as error:
            ui.notify(str(error), type="negative")

    async def _ask_for_name(self) -> None:
        selection = self._selection
        name = await told("Save this selection", "Name", "Save", text=self._name)
        pool = self._visit.pool
        if name is None:
            return
        if name in await asyncio.to_thread(pool.selections) and not await confirmed(
            f"There is a selection “{name}”. Consumers that lease by its name get the new one from then on.",
            "Replace it",
        ):
            return
        await asyncio.to_thread(pool.save_selection, name, selection)
        self._name = name
        await self.list_names()
        self._load(name, selection)
        ui.notify(f"Saved as {name}", type="positive")

    async def _ask_to_delete(self) -> None:
        name = self._name
        question = f"Delete the selection “{name}”? Consumers that lease by its name are refused from then on."
        if not await confirmed(question, "Delete it"):
            return
        await asyncio.to_thread(self._visit.pool.delete_selection, name)
        self._load("", self._selection)
        await self.list_names()
        ui.notify(f"Deleted {name}", type="positive")

    async def _freeze_it(self) -> None:
        name, selection, unit = self._dataset.value, self._selection, self._unit
        self._spinner.set_visibility(True)
        self._freeze.disable()
        try:
            made = await asyncio.to_thread(self._visit.pool.freeze, name, selection, unit=unit)
        finally:
            self._spinner.set_visibility(False)
            self._freeze.enable()
        self._show_frozen(made)

    def _show_frozen(self, made: DatasetInfo) -> None:
        of = made.manifest
        self._frozen.clear()
        with self._frozen:
            ui.link(full_name(made), link("/datasets", dataset=full_name(made))).classes("font-medium")
            ui.label(f"{of.units:,} units, {of.trajectories:,} trajectories, {of.steps:,} steps, {of.tokens:,} tokens")
            ui.label(f"sha256 {made.digest}").classes("text-xs font-mono sw-text")


def plural(unit: Unit) -> str:
    """What several units are called."""
    return _UNITS[unit][1]


def counted(number: int, unit: Unit) -> str:
    """So many units, in words."""
    return f"{number:,} {_UNITS[unit][number != 1]}"
