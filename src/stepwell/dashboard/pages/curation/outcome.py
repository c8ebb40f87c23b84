"""What the chosen selection comes to: counts, and what each rule leaves out."""

import asyncio
from collections.abc import Callable
from typing import Final

from nicegui import background_tasks, ui

from stepwell.curation.selection import Selection
from stepwell.dashboard.addresses import trajectory_address
from stepwell.dashboard.pages.curation.keeping import counted, plural
from stepwell.dashboard.reading.curation import SAMPLE, Dropped, Reach, Sifting, read_reach, sift
from stepwell.dashboard.rule_forms import spoken
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading
from stepwell.errors import StepwellError
from stepwell.pool.lease import ReadyCount, Unit

_CHOICES: Final[dict[Unit, str]] = {"group": "Groups", "siblings": "Siblings", "trajectory": "Trajectories"}
_MEMBERS: Final = "are ready with enough members that match."
_NOTHING: Final[dict[Unit, str]] = {
    "group": f"None of these would be handed over: no groups {_MEMBERS}",
    "siblings": f"None of these would be handed over: no sets of siblings {_MEMBERS}",
    "trajectory": "None of these would be handed over: none has ended, did not fail and is rewarded.",
}


class Outcome:
    """The figures of one selection; what was counted of an earlier one never overwrites them."""

    def __init__(self, visit: Visit, unit: Unit, unit_chosen: Callable[[], None]) -> None:
        """`unit_chosen` hears that another unit was chosen."""
        self._visit = visit
        self.unit = unit
        self._unit_chosen = unit_chosen
        self._wanted: tuple[Selection, Unit] = (Selection(), unit)
        self._sifted: tuple[Selection, Unit] | None = None  # what the rules were applied to last
        self._turn = 0
        self._ready = ReadyCount(0, 0)

    def draw(self) -> None:
        """The widgets, empty, in the current slot."""
        with ui.card().classes("w-full gap-2"):
            heading("What it comes to")
            with ui.row().classes("items-baseline gap-2"):
                self._matching = ui.label().classes("text-2xl font-semibold")
                self._match = ui.label()
            with ui.row().classes("items-center gap-2"):
                ui.label("Handed over at once:").classes("text-sm")
                toggle = ui.toggle(_CHOICES, value=self.unit, on_change=lambda event: self._choose(event.value))
                toggle.props("dense no-caps unelevated padding='2px 10px' toggle-text-color=white")
            self._offered = ui.label()
            self._problem = ui.label().classes("text-negative").props('role="alert"')
        with ui.card().classes("w-full gap-2") as self._rules_card:
            heading("What the rules leave out")
            with ui.row().classes("items-center gap-2"):
                self._seen = ui.label().classes("text-sm sw-quiet")
                self._spinner = ui.spinner(size="sm")
            self._progress = ui.linear_progress(value=0.0, show_value=False).props('aria-label="Progress"')
            self._by_rule = ui.column().classes("w-full gap-2")
            self._left = ui.label().classes("font-medium")
            self._all = ui.button("", icon="play_arrow", on_click=self._sift_all).props("outline no-caps")

    def _choose(self, unit: Unit) -> None:
        self.unit = unit
        self._unit_chosen()

    async def show(self, selection: Selection) -> None:
        """Count; and apply the rules to a sample, unless they were: a pool that grows is not read again and again."""
        wanted = self._wanted = (selection, self.unit)
        try:
            reach = await asyncio.to_thread(read_reach, self._visit.pool, *wanted)
        except StepwellError as error:
            self._problem.text = f"It cannot be counted: {error}"
            return
        if wanted != self._wanted or self._matching.is_deleted:
            return
        self._show_reach(reach)
        if wanted != self._sifted:
            self._sifted = wanted if reach.ready.units else None
            self._turn += 1
            self._rules_card.set_visibility(bool(selection.rules and reach.ready.units))
            if self._rules_card.visible:  # not waited for, because a page is not sent before it is built
                background_tasks.create(self._sift(SAMPLE), name="apply rules to a sample")

    async def _sift_all(self) -> None:
        self._turn += 1
        await self._sift(None)

    async def _sift(self, most: int | None) -> None:
        turn, (selection, unit) = self._turn, self._wanted
        self._spinner.set_visibility(True)
        self._progress.set_visibility(most is None)
        self._all.set_visibility(False)
        sifting = sift(self._visit.pool, selection, unit, most)
        try:
            while (result := await asyncio.to_thread(next, sifting, None)) is not None:
                if turn != self._turn or self._by_rule.is_deleted:
                    return
                self._show_sifting(selection, result)
        except StepwellError as error:
            self._problem.text = f"The rules cannot be applied: {error}"
        self._spinner.set_visibility(False)
        self._progress.set_visibility(False)
        self._all.set_visibility(True)

    def _show_reach(self, reach: Reach) -> None:
        self._problem.text = ""
        self._ready = reach.ready
        self._matching.text = f"{reach.matching:,}"
        self._match.text = f"{'trajectory matches' if reach.matching == 1 else 'trajectories match'} the conditions"
        self._offered.text = _offered(self._counted(reach.ready)) if reach.ready.units else _NOTHING[self.unit]

    def _show_sifting(self, selection: Selection, sifting: Sifting) -> None:
        seen, whole = sifting.seen, sifting.seen.trajectories >= self._ready.trajectories
        self._seen.text = (
            f"Applied to all {seen.trajectories:,} trajectories that were ready."
            if whole
            else f"Applied to {seen.trajectories:,} trajectories of the newest policy versions."
        )
        self._progress.value = seen.trajectories / max(self._ready.trajectories, 1)
        self._all.text = f"Apply them to all {self._ready.trajectories:,}"
        self._by_rule.clear()
        with self._by_rule:
            for rule, dropped in zip(selection.rules, sifting.by_rule, strict=True):
                _dropped(spoken(rule.use), dropped)
            if sifting.with_their_units:
                ui.label(
                    f"{sifting.with_their_units:,} more go with their {plural(self.unit)}, of which too little is left."
                )
        self._left.text = f"Left: {self._counted(sifting.left)}."

    def _counted(self, count: ReadyCount) -> str:
        units = counted(count.units, self.unit)
        return units if self.unit == "trajectory" else f"{units} with {counted(count.trajectories, 'trajectory')}"


def _offered(counted: str) -> str:
    return f"Ready of these: {counted}. A new consumer is offered them, but for what the rules leave out."


def _dropped(name: str, dropped: Dropped) -> None:
    with ui.column().classes("w-full gap-0"):
        with ui.row().classes("items-baseline gap-2"):
            ui.label(f"{name}: {dropped.trajectories:,}").classes("font-medium")
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.reasons)
            ui.label(reasons).classes("text-sm sw-quiet")
        for trajectory_id, reason in dropped.examples:
            with ui.row().classes("items-baseline gap-2 pl-3 text-sm"):
                ui.link(trajectory_id, trajectory_address(trajectory_id)).classes("sw-text")
                ui.label(reason).classes("sw-quiet")
