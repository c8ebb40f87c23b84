"""One trajectory: its conversation, under each answer the tokens that were really sampled, and all that is known."""

import asyncio
from collections.abc import Mapping

from nicegui import ui

from stepwell.dashboard.frame import follow
from stepwell.dashboard.pages.trajectory.credit import CreditCard
from stepwell.dashboard.pages.trajectory.family import relatives
from stepwell.dashboard.pages.trajectory.keys import add_keys
from stepwell.dashboard.pages.trajectory.steps import StepList
from stepwell.dashboard.pages.trajectory.style import add_style
from stepwell.dashboard.pages.trajectory.summary import summary
from stepwell.dashboard.pages.trajectory.tree import tree_panel
from stepwell.dashboard.reading.family import Family, read_family
from stepwell.dashboard.reading.trajectory import Head, read_head
from stepwell.dashboard.verdicts import Judge
from stepwell.dashboard.visit import Visit
from stepwell.errors import NotFound


async def build(parent: ui.column, visit: Visit, path: Mapping[str, str]) -> None:
    """The page of the trajectory that `path` names."""
    add_keys()
    add_style()
    view = TrajectoryView(parent, visit, path["trajectory_id"])
    await follow(visit, view.read)


class TrajectoryView:
    """The page's content. Steps that are drawn stay: an open view of tokens must not close because others come."""

    def __init__(self, parent: ui.column, visit: Visit, trajectory_id: str) -> None:
        """Build the parts, empty, in `parent`."""
        self._parent = parent
        self._visit = visit
        self._id = trajectory_id
        self._head: Head | None = None
        self._family: Family | None = None
        self._turn = asyncio.Lock()  # the pool grows, and somebody judges, at the same time
        self._judge = Judge(visit, lambda _: self.read())
        with parent:
            self._summary = ui.column().classes("w-full")
            self._relatives = ui.column().classes("w-full gap-4")
            self._credit = CreditCard(visit)
            self._tree = ui.column().classes("w-full")
            self._steps = StepList(visit)

    async def read(self) -> None:
        """Read the trajectory, and show what has changed."""
        async with self._turn:
            await self._read()

    async def _read(self) -> None:
        try:
            head = await asyncio.to_thread(read_head, self._visit.pool, self._id)
            family = await asyncio.to_thread(read_family, self._visit.pool, head.summary.info)
        except NotFound:
            self._show_missing()
            return
        if family != self._family:
            self._family = family
            self._relatives.clear()
            with self._relatives:
                relatives(head, family, self._steps.go)
        if head != self._head:
            await self._show(head)

    async def _show(self, head: Head) -> None:
        first, self._head = self._head is None, head
        self._summary.clear()
        with self._summary:
            summary(head, self._visit, self._judge)
        if first:
            with self._tree:
                tree_panel(self._visit.pool, self._id)
        await self._steps.show(head)
        await self._credit.follow(head, self._steps)

    def _show_missing(self) -> None:
        self._parent.clear()
        with self._parent:
            ui.label(f"There is no trajectory {self._id!r} in this pool.")
            ui.link("Search for trajectories", "/representation")
