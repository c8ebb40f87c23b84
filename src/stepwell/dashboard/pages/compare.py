"""Two trajectories side by side, step by step, with the first token in which they differ."""

import asyncio
from collections.abc import Mapping
from typing import Final

from nicegui import ui

from stepwell.dashboard.addresses import link, trajectory_address
from stepwell.dashboard.pages.trajectory.style import add_style
from stepwell.dashboard.pages.trajectory.summary import rewarded, versions
from stepwell.dashboard.reading.compare import (
    AT_ONCE,
    Comparison,
    Difference,
    Pair,
    first_difference,
    read_comparison,
    read_pairs,
)
from stepwell.dashboard.reading.trajectory import Head, StepView, Turn
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading, status_badge
from stepwell.errors import StepwellError

_WHAT: Final = "Two trajectories, step by step: name them here, or follow a link beside the members of a group."
_COLUMNS: Final = "grid w-full gap-4 grid-cols-1 md:grid-cols-2"


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page."""
    add_style()
    view = CompareView(parent, visit)
    ui.timer(0, view.read, once=True)  # once the page is there: to look through long trajectories takes a while


class CompareView:
    """The two ids, and below what was found of them."""

    def __init__(self, parent: ui.column, visit: Visit) -> None:
        """Build the fields, with the ids that the address names."""
        self._visit = visit
        self._stop = 0
        with parent:
            with ui.row().classes("w-full items-center gap-3"):
                self._left = self._field("Left", visit.query.get("left", ""))
                self._right = self._field("Right", visit.query.get("right", ""))
                ui.button("Compare", on_click=self._compare).props("outline no-caps")
                ui.button("Swap", on_click=self._swap).props("flat no-caps")
            with ui.row().classes("items-center gap-2"):
                self._busy = ui.spinner(size="sm").props('aria-label="Comparing"')
                self._said = ui.label(_WHAT).classes("sw-text").props('aria-live="polite"')
            self._busy.set_visibility(False)
            self._heads = ui.element("div").classes(_COLUMNS)
            self._pairs = ui.column().classes("w-full gap-4")
            self._more = ui.button("", on_click=self._show_more).props("outline no-caps")
            self._more.set_visibility(False)
        self._both: Comparison | None = None

    def _field(self, side: str, value: str) -> ui.input:
        field = ui.input(f"{side} trajectory", value=value).props(f'outlined dense aria-label="{side} trajectory"')
        return field.classes("flex-1 min-w-56").on("keydown.enter", self._compare)

    def _compare(self) -> None:
        ui.navigate.to(link("/compare", left=self._left.value.strip(), right=self._right.value.strip()))

    def _swap(self) -> None:
        ui.navigate.to(link("/compare", left=self._right.value.strip(), right=self._left.value.strip()))

    async def read(self) -> None:
        """Read what the address names, and show it from the first difference on, or from the step that it names."""
        left, right, pool = self._left.value.strip(), self._right.value.strip(), self._visit.pool
        if not (left and right):
            return
        self._busy.set_visibility(True)
        try:
            both = self._both = await asyncio.to_thread(read_comparison, pool, left, right)
            first = await asyncio.to_thread(first_difference, pool, both)
        except StepwellError as error:
            self._said.text = f"They cannot be compared: {error}."
            return
        finally:
            self._busy.set_visibility(False)
        with self._heads:
            for head in (both.left, both.right):
                _head(head, self._visit)
        self._said.text = _summary(both, first)
        start = self._asked(both)
        self._stop = first if start is None else start
        await self._show_more()

    def _asked(self, both: Comparison) -> int | None:
        """Place of the step that the address names."""
        wanted = self._visit.query.get("step", "")
        index = int(wanted) if wanted.isdecimal() and len(wanted) < 12 else -1
        return both.indexes.index(index) if index in both.indexes else None

    async def _show_more(self) -> None:
        both, start = self._both, self._stop
        if both is None:
            return
        try:
            pairs = await asyncio.to_thread(read_pairs, self._visit.pool, both, start, self._visit.decoders)
        except StepwellError as error:
            ui.notify(str(error), type="negative")
            return
        with self._pairs:
            for pair in pairs:
                _pair(pair, both)
        self._stop = start + len(pairs)
        left = len(both.indexes) - self._stop
        self._more.text = f"Show {min(left, AT_ONCE)} more steps, of {left:,}"
        self._more.set_visibility(left > 0)


def _summary(both: Comparison, first: int) -> str:
    if not both.indexes:
        return "Neither has a step yet."
    if first == len(both.indexes):
        return f"All their steps, {first} of each, are the same, token for token."
    index = both.indexes[first]
    if not first:
        return f"They differ from the first step, {index}, on."
    alike = "The first step is" if first == 1 else f"The first {first} steps are"
    return f"{alike} the same, token for token; they differ from step {index} on."


def _head(head: Head, visit: Visit) -> None:
    info = head.summary.info
    with ui.card().classes("w-full gap-1"):
        with ui.row().classes("items-center gap-2"):
            ui.link(info.id, trajectory_address(info.id)).classes("sw-text font-medium")
            status_badge(head.summary.status)
        ui.label(f"reward {rewarded(head.reward_parts)}").classes("text-sm")
        low, high = head.summary.policy_version_min, head.summary.policy_version_max
        said = f"{versions(low, high)} · {head.summary.steps:,} steps · {info.agent or info.source}"
        ui.label(f"{said} · opened {visit.time(info.created_at)}").classes("text-sm sw-quiet")


def _pair(pair: Pair, both: Comparison) -> None:
    with ui.card().classes("w-full gap-2"):
        with ui.row().classes("items-baseline gap-3"):
            heading(f"Step {pair.index}")
            ui.label(_verdict(pair)).classes("text-sm sw-quiet" if pair.alike else "text-sm")
        with ui.element("div").classes(_COLUMNS):
            for side, view, head in (("left", pair.left, both.left), ("right", pair.right, both.right)):
                with ui.column().classes("gap-2 min-w-0"):
                    ui.label(f"{side}: {head.summary.info.id}").classes("text-xs sw-text md:hidden")
                    if view is None:
                        ui.label("It has no such step.").classes("sw-quiet")
                    else:
                        _step(view, both)
                        _difference(pair.difference, side)


def _verdict(pair: Pair) -> str:
    if pair.alike:
        return "the same tokens"
    if pair.difference is None:
        return "only one of them has it"
    found = pair.difference
    return f"first difference: token {found.position:,} of the {found.part}"


def _step(view: StepView, both: Comparison) -> None:
    step = view.step
    parts = both.rewards.get(step.id, ())
    said = [versions(step.policy_version_min, step.policy_version_max), f"{len(step.response_ids):,} sampled"]
    said += [f"ended by {step.finish_reason}", f"reward {rewarded(parts)}" if parts else "no reward"]
    ui.label(" · ".join(said)).classes("text-sm sw-quiet")
    for turn in view.seen:
        _turn(turn)
    if view.answer is not None:
        _turn(view.answer)


def _turn(turn: Turn) -> None:
    with ui.column().classes("w-full gap-0"):
        ui.label(turn.role).classes("text-xs sw-quiet")
        ui.label(turn.text).classes("sw-text")


def _difference(found: Difference | None, side: str) -> None:
    if found is None:
        return
    own = found.left if side == "left" else found.right
    with ui.element("div").classes("sw-tokens w-full"):
        ui.label(f"… {found.shared}").classes("inline sw-quiet")
        ui.label(own or "(ends here)").classes("inline sw-differs")
