"""The steps of a trajectory, some at a time: those around the one that is wanted, and more on demand."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from stepwell.dashboard.pages.trajectory.card import Facts, StepCard, legend
from stepwell.dashboard.pages.trajectory.keys import EARLIER, LATER, go_to
from stepwell.dashboard.reading.credit import Assigned
from stepwell.dashboard.reading.trajectory import Head, StepView, gaps, read_views
from stepwell.dashboard.tokens import tokens_html
from stepwell.dashboard.visit import Visit

AT_ONCE: Final = 50
"""Steps that are drawn at a time."""
_AROUND: Final = 3
"""Steps that are drawn before the one that is wanted."""
_OPENED: Final = 3_000
"""Sampled tokens that are shown at once; those of further steps are shown when somebody opens them."""


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A step that was read, with its tokens as markup; None: they are made when they are opened."""

    view: StepView
    tokens: str | None


class StepList:
    """The steps at the places from `start` until before `stop` are drawn, one card each."""

    def __init__(self, visit: Visit) -> None:
        """Draw nothing yet."""
        self._visit = visit
        self._head: Head | None = None
        self._start = self._stop = 0
        self._cards: dict[str, StepCard] = {}
        self._assigned: Assigned | None = None
        self._empty = ui.label("No step yet: the agent has not called the model.").classes("sw-quiet")
        with ui.row().classes("gap-2"):
            self._earlier = _button(self.earlier).classes(EARLIER)
        legend()
        self._list = ui.column().classes("w-full gap-4")
        with ui.row().classes("gap-2 items-center"):
            self._later = _button(self.later).classes(LATER)
            self._newest = _button(self.newest)
            self._busy = ui.spinner(size="sm").props('aria-label="Reading steps"')
        self._busy.set_visibility(False)

    async def show(self, head: Head) -> None:
        """Draw what is new; the first time the steps around the one that the address asks for."""
        first, before, self._head = self._head is None, self._head, head
        if first:
            await self._begin(head)
        elif before is not None and self._stop == len(before.steps):  # who sees the end, sees it grow
            await self._draw(self._stop, min(self._stop + AT_ONCE, len(head.steps)))
        self._refresh()

    async def earlier(self) -> None:
        """Draw some steps before those that are drawn."""
        if self._head is not None and self._start:
            stop, start = self._start, max(0, self._start - AT_ONCE)
            await self._draw(start, stop)
            go_to(self._head.steps[stop - 1].index)

    async def later(self) -> None:
        """Draw some steps after those that are drawn."""
        if self._head is not None and self._stop < len(self._head.steps):
            start = self._stop
            await self._draw(start, min(start + AT_ONCE, len(self._head.steps)))
            go_to(self._head.steps[start].index)

    async def newest(self) -> None:
        """Show the last step."""
        if self._head is not None and self._head.steps:
            await self.go(self._head.steps[-1].index)

    async def go(self, index: int) -> None:
        """Show the step with this index, or the next one; others are drawn only if it is not among those that are."""
        if self._head is None or not self._head.steps:
            return
        place = min(self._head.place_of(index), len(self._head.steps) - 1)
        if not self._start <= place < self._stop:
            await self._restart(place)
        go_to(self._head.steps[place].index)

    def give_credit(self, assigned: Assigned | None) -> None:
        """Say at each step what an algorithm gives it."""
        self._assigned = assigned
        self._refresh()

    async def _begin(self, head: Head) -> None:
        wanted = self._visit.query.get("step", "")
        if wanted.isdecimal() and len(wanted) < 12 and head.steps:
            await self.go(int(wanted))
        else:
            await self._draw(0, min(AT_ONCE, len(head.steps)))

    async def _restart(self, place: int) -> None:
        self._list.clear()
        self._cards.clear()
        self._start = self._stop = max(0, place - _AROUND)
        await self._draw(self._start, min(self._start + AT_ONCE, len(self._head.steps) if self._head else 0))

    async def _draw(self, start: int, stop: int) -> None:
        """Draw the steps from `start` until before `stop`, which are just before or just after those that are drawn."""
        if self._head is None or start >= stop:
            return
        self._busy.set_visibility(True)
        drawings = await asyncio.to_thread(_read, self._visit, self._head, start, stop)
        self._busy.set_visibility(False)
        if self._list.is_deleted or (start != self._stop and stop != self._start):  # others were drawn meanwhile
            return
        chunk = ui.column().classes("w-full gap-4")
        chunk.move(self._list, target_index=0 if stop == self._start else -1)
        with chunk:
            for drawing in drawings:
                step = drawing.view.step
                self._cards[step.id] = StepCard(drawing.view, drawing.tokens, self._visit)
        self._start, self._stop = min(self._start, start), max(self._stop, stop)
        self._refresh()

    def _refresh(self) -> None:
        """What may change of steps that are drawn: rewards, credit, remarks, and how many others there are."""
        head = self._head
        if head is None:
            return
        rewards, between = head.rewards(), gaps(head.steps)
        given = self._assigned.by_step if self._assigned else {}
        for step_id, card in self._cards.items():
            about = tuple(note for note in head.remarks if note.target_id == step_id)
            credit = given.get(step_id)
            card.update(Facts(between.get(step_id), rewards.get(step_id, ()), credit, about), self._visit)
        _offer(self._earlier, self._start, f"Show {min(self._start, AT_ONCE)} earlier steps, of {self._start:,}")
        left = len(head.steps) - self._stop
        _offer(self._later, left, f"Show {min(left, AT_ONCE)} more steps, of {left:,}")
        _offer(self._newest, left > AT_ONCE, "Go to the newest")
        self._empty.set_visibility(not head.steps)


def _read(visit: Visit, head: Head, start: int, stop: int) -> list[_Drawing]:
    drawings, shown = [], 0
    for view in read_views(visit.pool, head, start, stop):
        shown += len(view.step.response_ids)
        decode = visit.decoders.get(view.step.model)
        drawings.append(_Drawing(view, tokens_html(view.step, decode) if shown <= _OPENED else None))
    return drawings


def _button(press: Callable[[], Awaitable[None]]) -> ui.button:
    return ui.button("", on_click=press).props("outline no-caps")


def _offer(button: ui.button, wanted: int | bool, text: str) -> None:
    button.set_text(text)
    button.set_visibility(bool(wanted))
