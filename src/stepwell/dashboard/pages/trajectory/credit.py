"""What an algorithm would give each step of the trajectory: a choice, a sentence, and a bar for each step."""

import asyncio
from typing import Any, Final

from nicegui import ui

from stepwell.dashboard.charts import AXIS, GRID_LINE
from stepwell.dashboard.pages.trajectory.keys import remember
from stepwell.dashboard.pages.trajectory.steps import StepList
from stepwell.dashboard.reading.credit import NAMES, Assigned, read_credit
from stepwell.dashboard.reading.trajectory import Head
from stepwell.dashboard.visit import Visit
from stepwell.errors import StepwellError

_NONE: Final = ""
_COLOURS: Final = {True: "#2f9e63", False: "#d9534f"}


class CreditCard:
    """Follows the trajectory: with another reward credit is another."""

    def __init__(self, visit: Visit) -> None:
        """Nothing is worked out before somebody asks."""
        self._visit = visit
        wanted = visit.query.get("credit", "")
        self._head: Head | None = None
        self._steps: StepList | None = None
        with ui.card().classes("w-full gap-2"):
            with ui.row().classes("items-center gap-3"):
                names = {_NONE: "none", **{name: name for name in NAMES}}
                chosen = wanted if wanted in NAMES else _NONE
                self._choice = ui.select(names, value=chosen, label="Credit by algorithm", on_change=self._choose)
                self._choice.props('outlined dense aria-label="Credit by algorithm"').classes("w-56")
                self._busy = ui.spinner(size="sm").props('aria-label="Working out credit"')
                self._busy.set_visibility(False)
            self._said = ui.label().classes("text-sm sw-text").props('aria-live="polite"')
            self._chart = ui.echart({}).classes("w-full h-40").props('role="img" aria-label="Credit of each step"')
        self._show(None)

    async def follow(self, head: Head, steps: StepList) -> None:
        """Work credit out again, if somebody wants to see any."""
        self._head, self._steps = head, steps
        if self._choice.value:
            await self._assign()

    async def _choose(self) -> None:
        remember("credit", str(self._choice.value or ""))
        await self._assign()

    async def _assign(self) -> None:
        name, head = self._choice.value, self._head
        if not name or head is None:
            self._show(None)
            return
        self._busy.set_visibility(True)
        try:
            assigned = await asyncio.to_thread(read_credit, self._visit.pool, name, head.summary.info)
        except StepwellError as error:
            assigned = Assigned(name, f"The group cannot be read: {error}")
        if self._choice.value == name:  # nobody chose another one meanwhile
            self._busy.set_visibility(False)
            self._show(assigned)

    def _show(self, assigned: Assigned | None) -> None:
        self._said.text = "Choose one to see what it would give each step." if assigned is None else assigned.said
        given = assigned is not None and bool(assigned.by_step)
        self._chart.set_visibility(given)
        if assigned is not None and given and self._head is not None:
            self._chart.options.clear()
            self._chart.options.update(_bars(assigned, self._head))
            self._chart.update()
        if self._steps is not None:
            self._steps.give_credit(assigned)


def _bars(assigned: Assigned, head: Head) -> dict[str, Any]:
    given = [(step.index, assigned.by_step[step.id].mean) for step in head.steps if step.id in assigned.by_step]
    bars = [{"value": round(mean, 6), "itemStyle": {"color": _COLOURS[mean >= 0]}} for _, mean in given]
    return {
        "animation": False,
        "grid": {"left": 56, "right": 16, "top": 12, "bottom": 36},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "xAxis": {**AXIS, "type": "category", "data": [index for index, _ in given]}
        | {"name": "step", "nameLocation": "middle", "nameGap": 24},
        "yAxis": {**AXIS, "type": "value", "splitLine": GRID_LINE},
        "series": [{"type": "bar", "name": assigned.algorithm, "data": bars, "barMaxWidth": 24}],
    }
