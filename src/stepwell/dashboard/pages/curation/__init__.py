"""Choosing what is trained on: conditions and rules with what they come to, and verdicts on what they match."""

import asyncio
from collections.abc import Mapping
from typing import Final, cast, get_args

from nicegui import background_tasks, ui

from stepwell.curation.selection import Selection
from stepwell.dashboard.frame import follow
from stepwell.dashboard.pages.curation.builder import Builder
from stepwell.dashboard.pages.curation.keeping import Keeping
from stepwell.dashboard.pages.curation.outcome import Outcome
from stepwell.dashboard.pages.curation.queue import Queue
from stepwell.dashboard.reading.curation import read_selection, written
from stepwell.dashboard.visit import Visit
from stepwell.errors import StepwellError
from stepwell.pool.lease import Unit

PAUSE: Final = 0.15
"""Seconds without a change of the form after which it is counted."""
_LONGEST: Final = 4000
"""Characters of a selection that an address holds; whoever chooses thousands of ids saves them under a name."""


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page."""
    saved, selection, mistake = await asyncio.to_thread(_asked_for, visit)
    if mistake:
        with parent:
            said = f"The address asks for what cannot be chosen: {mistake}. Nothing is chosen, so this is everything."
            ui.label(said).classes("sw-text text-negative").props('role="alert"')
    view = CurationView(parent, visit, saved, selection)
    await follow(visit, view.refresh)


def _asked_for(visit: Visit) -> tuple[str, Selection, str]:
    """(name, selection, "") of a saved one, or an unnamed one as the address has it; or else why there is none."""
    name = visit.query.get("saved", "")
    try:
        if name:
            return name, visit.pool.selection(name), ""
        return "", read_selection(visit.query.get("selection", ""), visit.zone), ""
    except StepwellError as error:
        return "", Selection(), str(error)


class CurationView:
    """The page's state, and its parts, which tell it what was changed."""

    def __init__(self, parent: ui.column, visit: Visit, saved: str, selection: Selection) -> None:
        """Draw the page in `parent`, with `selection` chosen, which is `saved` under that name, if it has one."""
        self._visit = visit
        self._saved = saved
        self._selection = selection
        self._changes = 0
        unit = visit.query.get("unit", "group")
        self._outcome = Outcome(visit, cast(Unit, unit) if unit in get_args(Unit) else "group", self._changed)
        self._keeping = Keeping(visit, self._load)
        self._queue = Queue(visit, self._remember)
        with parent:
            shown = "judge" if visit.query.get("tab") == "judge" else "choose"
            with ui.tabs(value=shown, on_change=self._turned).props("dense align=left no-caps") as self._tabs:
                choose, judge = ui.tab("choose", "Choose"), ui.tab("judge", "Judge")
            with ui.tab_panels(self._tabs, value=shown).classes("w-full bg-transparent"):
                with (
                    ui.tab_panel(choose).classes("p-0"),
                    ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-2 gap-4 items-start"),
                ):
                    with ui.column().classes("w-full gap-4 min-w-0"):
                        self._keeping.draw()
                        self._builder = Builder(selection, visit.zone, self._chosen)
                    with ui.column().classes("w-full gap-4 min-w-0"):
                        self._outcome.draw()
                        self._keeping.draw_freezing()
                with ui.tab_panel(judge).classes("p-0"):
                    self._queue.draw()
        self._keeping.hold(selection, self._outcome.unit, saved)

    async def refresh(self) -> None:
        """The pool has grown."""
        await self._keeping.list_names()
        await self._show()

    async def _show(self) -> None:
        """What is looked at; the other tab is brought up to date when somebody turns to it."""
        if self._judging:
            await self._queue.show(self._selection)
        else:
            await self._outcome.show(self._selection)

    @property
    def _judging(self) -> bool:
        return bool(self._tabs.value == "judge")

    def _chosen(self, selection: Selection | None) -> None:
        """The form holds this selection now; None: it has a mistake."""
        if selection is None or selection == self._selection:
            self._keeping.hold(self._selection, self._outcome.unit, self._saved, correct=selection is not None)
            return
        self._selection, self._saved = selection, ""
        self._changed()

    def _load(self, name: str, selection: Selection) -> None:
        """A saved one was chosen, or this one got a name."""
        self._selection, self._saved = selection, name
        self._builder.show(selection)
        self._changed()

    def _changed(self) -> None:
        self._keeping.hold(self._selection, self._outcome.unit, self._saved)
        self._remember()
        self._changes += 1
        background_tasks.create(self._count_after_a_pause(self._changes), name="count a selection")

    async def _count_after_a_pause(self, change: int) -> None:
        await asyncio.sleep(PAUSE)
        if change == self._changes:
            await self._outcome.show(self._selection)

    async def _turned(self) -> None:
        self._remember()
        await self._show()

    def _remember(self) -> None:
        text = "" if self._saved else written(self._selection)
        judging = {"tab": "judge", "at": self._queue.at, "judged": self._queue.with_judged} if self._judging else {}
        unit = self._outcome.unit
        self._visit.remember(
            saved=self._saved,
            selection=text if len(text) <= _LONGEST else "",
            unit=unit if unit != "group" else "",
            **judging,
        )
