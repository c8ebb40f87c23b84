"""The queue of trajectories to judge: what the selection matches, newest first, one at a time."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from nicegui import ui

from stepwell.curation.selection import Selection
from stepwell.dashboard.addresses import trajectory_address
from stepwell.dashboard.reading.curation import next_of, place_of, to_judge
from stepwell.dashboard.reading.trajectory import Head, StepView, Turn, read_head, read_views
from stepwell.dashboard.verdicts import Control, Judge
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import status_badge
from stepwell.errors import NotFound, StepwellError
from stepwell.pool.base import Pool

_NOTHING: Final = """\
Nothing that the selection matches is left to judge. Choose another selection, or include what has a verdict.
"""

SHOWN: Final = 40
"""Steps of a trajectory that are shown: the last ones."""


class Queue:
    """One trajectory after another, and what was seen, to go back to."""

    def __init__(self, visit: Visit, moved: Callable[[], None]) -> None:
        """`moved` hears that another one is shown."""
        self._visit = visit
        self._moved = moved
        self.at = visit.query.get("at", "") if visit.query.get("tab") == "judge" else ""
        self.with_judged = bool(visit.query.get("judged"))
        self._turn = asyncio.Lock()
        self._drawing = asyncio.Lock()
        self._wanted: Selection | None = None
        self._selection = Selection()
        self._seen: list[tuple[int, str]] = []
        self._place = 0
        self._shown: Head | None = None

    def draw(self) -> None:
        """The widgets, empty, in the current slot."""
        self._judge = Judge(
            self._visit,
            self._judged,
            Control("k", "Previous", "navigate_before", self._previous),
            Control("j", "Next", "navigate_next", self._next),
        )
        with ui.row().classes("w-full items-center gap-3"):
            self._position = ui.label().classes("text-sm sw-quiet").props('aria-live="polite"')
            ui.switch("Also those with a verdict", value=self.with_judged, on_change=lambda e: self._include(e.value))
            ui.button("From the newest", icon="first_page", on_click=self._restart).props("flat dense no-caps")
        self._nothing = ui.label().classes("sw-quiet")
        with ui.column().classes("w-full gap-3") as self._one:
            with ui.card().classes("w-full gap-2 sm:sticky top-0 z-10"):
                self._head = ui.row().classes("w-full items-center gap-x-4 gap-y-1")
                self._judge.controls()
            self._conversation = ui.column().classes("w-full gap-2")
            with ui.card().classes("w-full"):
                self._judge.trail(shown=True)

    async def show(self, selection: Selection) -> None:
        """What `selection` matches, from the newest on; or again the one that is judged, if that is judged already."""
        async with self._turn:  # the pool grows while somebody turns to this tab
            await self._open(selection)
            await self._draw_current()

    async def _open(self, selection: Selection) -> None:
        wanted = to_judge(selection, judged=self.with_judged)
        if wanted == self._wanted:
            return
        asked = self.at if self._wanted is None else ""
        self._selection, self._wanted, self._shown = selection, wanted, None
        self._seen, self._place = [], 0
        self._nothing.text = _NOTHING
        try:
            place = await asyncio.to_thread(place_of, self._visit.pool, asked) if asked else None
            self._seen = [(place, asked)] if place is not None else []
            if not self._seen:
                await self._look(None)
        except StepwellError as error:
            self._nothing.text = f"It cannot be searched: {error}"

    async def _draw_current(self) -> None:
        """Draw the current one, if it has changed."""
        async with self._drawing:  # what was read first is drawn first
            self.at = self._seen[self._place][1] if self._seen else ""
            self._moved()
            head, views = await asyncio.to_thread(_read, self._visit.pool, self.at, self._shown)
            self._one.set_visibility(head is not None)
            self._nothing.set_visibility(head is None)
            if head is not None and head != self._shown:
                self._show(head, views)
            await self._count()

    def _show(self, head: Head, views: Sequence[StepView]) -> None:
        self._shown = head
        self._judge.show(head)
        self._head.clear()
        with self._head:
            _head(head)
        self._conversation.clear()
        with self._conversation:
            _conversation(head, views)

    async def _count(self) -> None:
        """How many there are now: each verdict makes it one less, unless those with a verdict are in."""
        try:
            matching = await asyncio.to_thread(self._visit.pool.count, self._sought)
        except StepwellError:  # whoever looks for the next one hears why
            return
        what = "match" if self.with_judged else "left to judge"
        self._position.text = f"{matching:,} {what}, newest first" if self._seen else ""

    @property
    def _sought(self) -> Selection:
        return self._wanted or to_judge(self._selection, judged=self.with_judged)

    async def _judged(self, trajectory_id: str) -> None:
        """Show what was said, where it was said: undo may be about one that was seen before."""
        ids = [seen for _, seen in self._seen]
        if trajectory_id in ids:
            self._place = ids.index(trajectory_id)
        await self._draw_current()

    async def _next(self) -> None:
        if self._place + 1 < len(self._seen) or await self._look(self._seen[-1][0] if self._seen else None):
            self._place = min(self._place + 1, len(self._seen) - 1)
            await self._draw_current()
        else:
            ui.notify("That was the last one.", type="info")

    async def _previous(self) -> None:
        if self._place == 0:
            ui.notify("This is where you began. “From the newest” leads to newer ones, if there are any.", type="info")
            return
        self._place -= 1
        await self._draw_current()

    async def _look(self, before: int | None) -> bool:
        """Whether there is one more."""
        found = await asyncio.to_thread(next_of, self._visit.pool, self._sought, before)
        if found is not None:
            self._seen.append((found[0], found[1].info.id))
        return found is not None

    async def _include(self, judged: bool) -> None:
        self.with_judged = judged
        await self._restart()

    async def _restart(self) -> None:
        self.at, self._wanted = "", None
        await self.show(self._selection)


def _read(pool: Pool, trajectory_id: str, shown: Head | None) -> tuple[Head | None, list[StepView]]:
    """None: there is none (any more). Without its steps, if it is what is shown already."""
    try:
        head = read_head(pool, trajectory_id) if trajectory_id else None
    except NotFound:
        head = None
    if head is None or head == shown:
        return head, []
    return head, read_views(pool, head, max(0, len(head.steps) - SHOWN), len(head.steps))


def _head(head: Head) -> None:
    info = head.summary.info
    ui.link(info.id, trajectory_address(info.id)).classes("font-medium sw-text")
    status_badge(head.summary.status)
    for name, value in {"task": info.task_id, "agent": info.agent, "group": info.group_id or ""}.items():
        if value:
            ui.label(f"{name} {value}").classes("text-sm sw-quiet sw-text")


def _conversation(head: Head, views: Sequence[StepView]) -> None:
    if not views:
        ui.label("No step yet: the agent has not called the model.").classes("sw-quiet")
    elif len(views) < len(head.steps):
        ui.label(f"The last {SHOWN} of {len(head.steps):,} steps.").classes("sw-quiet")
    for view in views:
        for turn in view.seen:
            _turn(turn)
        with ui.card().classes("w-full gap-1 p-3"):
            ui.label(f"answer of step {view.step.index}").classes("text-xs sw-quiet")
            ui.label(view.answer.text if view.answer else "No text was recorded.").classes("sw-text")


def _turn(turn: Turn) -> None:
    with ui.column().classes("w-full gap-0 px-3"):
        ui.label(turn.role).classes("text-xs sw-quiet")
        ui.label(turn.text).classes("sw-text")
