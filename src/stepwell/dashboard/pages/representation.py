"""The stage of representation: search and filter trajectories, and go straight to what an id names."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, get_args

from nicegui import ui

from stepwell.dashboard.frame import follow
from stepwell.dashboard.moments import written
from stepwell.dashboard.reading.representation import (
    EVERY,
    PAGE,
    Found,
    ignored,
    listed,
    place_of,
    query_of,
    read_page,
    selection_of,
)
from stepwell.dashboard.tables import Table
from stepwell.dashboard.trajectories import COLUMNS, row
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading
from stepwell.errors import StepwellError
from stepwell.types import Status

_IGNORED: Final = "Not a condition that anything could meet, and ignored: {}."
_NOTHING: Final = "No trajectory is like that. Take a condition away, or clear them all."
_EMPTY: Final = (
    "Nothing has been collected yet. Point an agent's base URL at the gateway (stepwell serve), and what it does "
    "can be searched here."
)
_CHOICES: Final = {"statuses": get_args(Status), "verdicts": EVERY}
"""What is chosen from a few values, by its field."""
_RANGES: Final = {
    "reward": ("min_reward", "max_reward"),
    "policy version": ("min_policy_version", "max_policy_version"),
    "steps": ("min_steps", "max_steps"),
}
_LABELS: Final = {
    "statuses": "Status",
    "verdicts": "Verdict",
    "sources": "Source",
    "agents": "Agent",
    "channel": "Channel",
    "task_ids": "Task",
    "group_ids": "Group",
    "tags": "With all tags",
    "without_tags": "Without tags",
    "created_after": "Opened after",
    "created_before": "Opened before",
}


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page."""
    view = RepresentationView(parent, visit)
    await view.offer()
    await follow(visit, view.read)


class RepresentationView:
    """The conditions and the results; the address bar always says which."""

    def __init__(self, parent: ui.column, visit: Visit) -> None:
        """Build the widgets in `parent`, with the conditions that the visit's query asks for."""
        self._visit = visit
        self._selection = selection_of(visit.query, visit.zone)
        before = visit.query.get("before", "")
        self._before = int(before) if before.isdecimal() and len(before) < 19 else None
        self._newer: list[int | None] = []  # where the pages begin from which one came here
        self._last: int | None = None
        self._ignored = ignored(visit.query, visit.zone)
        self._fields: dict[str, Any] = {}
        with parent:
            with ui.row().classes("w-full gap-4 items-start"):
                self._search()
                self._jump()
            with ui.expansion("Conditions", value=bool(self._asked)) as panel:
                panel.classes("w-full").props('dense header-class="font-medium"')
                with ui.element("div").classes("grid gap-x-4 gap-y-2 w-full grid-cols-1 sm:grid-cols-2 lg:grid-cols-4"):
                    self._conditions()
            with ui.card().classes("w-full"):
                self._results()
        if self._ignored:
            self._address()

    def _search(self) -> None:
        self._fields["text"] = (
            ui.input("Words in what was sent or answered", value=self._selection.text, on_change=self._changed)
            .props('debounce=400 clearable outlined dense type=search aria-label="Words to search for"')
            .classes("flex-1 min-w-64")
        )

    def _jump(self) -> None:
        with ui.row().classes("items-center gap-2 no-wrap flex-1 min-w-64"):
            self._id = ui.input("Go to an id: trajectory, step, answer or group").classes("grow")
            self._id.props('outlined dense aria-label="Id to go to"').on("keydown.enter", self._go)
            ui.button("Go", on_click=self._go).props('outline no-caps aria-label="Go to this id"')

    def _conditions(self) -> None:
        for name in ("statuses", "verdicts"):
            self._choice(name, list(_CHOICES[name]))
        for name in ("sources", "agents", "tags", "without_tags", "task_ids", "group_ids"):
            self._choice(name, list(getattr(self._selection, name)), free=True)
        chosen = self._selection.channel
        self._fields["channel"] = self._dressed(
            ui.select([chosen] if chosen else [], value=chosen, label="Channel", on_change=self._changed), "Channel"
        )
        for what, (low, high) in _RANGES.items():
            with ui.row().classes("no-wrap gap-2 w-full"):
                self._number(low, f"Least {what}")
                self._number(high, f"Most {what}")
        for name in ("created_after", "created_before"):
            self._time(name)

    def _choice(self, name: str, options: list[str], *, free: bool = False) -> None:
        chosen = list(getattr(self._selection, name))
        chosen = [] if name == "verdicts" and set(chosen) == set(EVERY) else chosen
        make = ui.select(
            options,
            value=chosen,
            label=_LABELS[name],
            multiple=True,
            on_change=self._changed,
            new_value_mode="add-unique" if free else None,
        )
        self._fields[name] = self._dressed(make.props("use-chips"), _LABELS[name])

    def _dressed(self, field: ui.select, name: str) -> ui.select:
        return field.props(f'outlined dense clearable aria-label="{name}"').classes("w-full")

    def _number(self, name: str, label: str) -> None:
        field = ui.number(label, value=getattr(self._selection, name), on_change=self._changed)
        self._fields[name] = field.props(f'debounce=400 outlined dense clearable aria-label="{label}"').classes("grow")

    def _time(self, name: str) -> None:
        shown = written(getattr(self._selection, name), self._visit.zone)
        field = ui.input(_LABELS[name], value=shown, on_change=self._changed)
        look = f'type=datetime-local stack-label debounce=400 outlined dense clearable aria-label="{_LABELS[name]}"'
        self._fields[name] = field.props(look).classes("w-full")

    def _results(self) -> None:
        with ui.row().classes("w-full items-center gap-2"):
            self._count = heading("").classes("grow").props('aria-live="polite"')
            self._busy = ui.spinner(size="sm").props('aria-label="Searching"')
            self._clear = ui.button("Clear conditions", on_click=lambda: ui.navigate.to("/representation"))
            self._clear.props("flat dense no-caps")
            self._back = ui.button("Newer", icon="chevron_left", on_click=self._page_back)
            self._on = ui.button("Older", on_click=self._page_on).props("icon-right=chevron_right")
            for button in (self._back, self._on):
                button.props("flat dense no-caps")
        self._unheard = ui.label().classes("sw-text").props('role="status"')
        self._said = ui.label().classes("sw-text")
        self._table = Table(COLUMNS, key="id", label="Trajectories", page=0, sortable=False)

    async def offer(self) -> None:
        """Offer the sources, agents and channels that the pool has; what the address asks for stays among them."""
        try:
            origins = await asyncio.to_thread(self._visit.pool.origins)
        except StepwellError:  # following the pool says so
            return
        for name, known in (
            ("sources", {origin.source for origin in origins}),
            ("agents", {origin.agent for origin in origins}),
            ("channel", {origin.channel for origin in origins}),
        ):
            field = self._fields[name]
            field.set_options(sorted({*field.options, *known} - {""}))

    async def read(self) -> None:
        """Read this page of results and show it."""
        selection, before = self._selection, self._before
        self._busy.set_visibility(True)
        problem = ""
        found: Found = ()
        try:
            found = await asyncio.to_thread(read_page, self._visit.pool, selection, before)
        except StepwellError as error:
            problem = str(error)
        if (selection, before) != (self._selection, self._before):  # somebody asked for something else meanwhile
            return
        self._show(found, problem)
        whole = not problem and before is None and len(found) < PAGE
        total = len(found) if whole or problem else await asyncio.to_thread(self._visit.pool.count, selection)
        if (selection, before) == (self._selection, self._before):
            self._busy.set_visibility(False)
            self._tell(total)

    def _tell(self, total: int) -> None:
        """How many there are in all, which takes longer to find out than the first of them."""
        many = "1 trajectory" if total == 1 else f"{total:,} trajectories"
        found = " found" if self._asked else ""
        self._count.text = f"{many}{found}, newest first{', an older page' if self._before else ''}"

    def _show(self, found: Found, problem: str) -> None:
        asked = bool(self._asked)
        self._unheard.text = _IGNORED.format("; ".join(f"{name} {text}" for name, text in self._ignored.items()))
        self._unheard.set_visibility(bool(self._ignored))
        nothing = _NOTHING if asked or self._before is not None else _EMPTY
        self._last = found[-1][0] if len(found) == PAGE else None
        self._said.text = problem or ("" if found else nothing)
        self._said.set_visibility(bool(self._said.text))
        self._clear.set_visibility(asked)
        self._back.set_visibility(self._before is not None)
        self._on.set_visibility(self._last is not None)
        self._table.set_visibility(bool(found))
        self._table.fill([row(summary, self._visit) for _, summary in found])

    async def _changed(self) -> None:
        said = {name: _said(field.value) for name, field in self._fields.items()}
        self._selection, self._ignored = selection_of(said, self._visit.zone), ignored(said, self._visit.zone)
        await self._turn_to(None, [])

    @property
    def _asked(self) -> dict[str, str]:
        """The conditions, as the address bar has them; empty if there are none."""
        return query_of(self._selection, self._visit.zone)

    async def _page_on(self) -> None:
        await self._turn_to(self._last, [*self._newer, self._before])

    async def _page_back(self) -> None:
        *newer, before = self._newer or [None]
        await self._turn_to(before, newer)

    async def _turn_to(self, before: int | None, newer: list[int | None]) -> None:
        self._before, self._newer = before, newer
        self._address()
        await self.read()

    def _address(self) -> None:
        self._visit.remember(**self._asked, before=self._before)

    async def _go(self) -> None:
        wanted = str(self._id.value or "").strip()
        if not wanted:
            return
        try:
            place = await asyncio.to_thread(place_of, self._visit.pool, wanted)
        except StepwellError as error:
            ui.notify(str(error), type="negative")
            return
        if place is None:
            ui.notify(f"Nothing in this pool has the id {wanted!r}.", type="warning")
        else:
            ui.navigate.to(place)


def _said(value: object) -> str:
    """What a field holds, as the address bar has it."""
    if isinstance(value, list):
        return listed(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)
