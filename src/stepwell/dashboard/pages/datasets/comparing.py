"""What a dataset has otherwise than another version."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from nicegui import ui

from stepwell.dashboard.addresses import trajectory_address
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading
from stepwell.errors import StepwellError
from stepwell.pool.frozen import DatasetDiff, DatasetInfo

SHOWN: Final = 100
"""Trajectories of each kind that are named."""


class Comparing:
    """A choice of the version before, and the differences, drawn in the current slot."""

    def __init__(
        self,
        visit: Visit,
        found: Mapping[str, DatasetInfo],
        after: str,
        before: str,
        compared: Callable[[str], None],
    ) -> None:
        """Compare `after` with `before`, if that is one; `compared` hears which one is chosen."""
        self._visit = visit
        self._after = after
        self._compared = compared
        others = [name for name in found if name != after]
        with ui.card().classes("w-full gap-2"):
            heading("What changed")
            chosen = before if before in others else None
            with ui.row().classes("w-full items-center gap-2"):
                select = ui.select(others, label=f"{after} against", value=chosen, clearable=True)
                select.props("outlined dense").classes("min-w-60").on_value_change(
                    lambda event: self._show(event.value)
                )
                self._spinner = ui.spinner(size="sm")
                self._spinner.set_visibility(False)
            self._differences = ui.column().classes("w-full gap-1").props('aria-live="polite"')
            if chosen:
                ui.timer(0, lambda: self._show(chosen), once=True)

    async def _show(self, before: str | None) -> None:
        self._compared(before or "")
        self._differences.clear()
        if not before:
            return
        self._spinner.set_visibility(True)
        try:
            diff = await asyncio.to_thread(self._visit.pool.dataset_diff, before, self._after)
        except StepwellError as error:
            ui.notify(str(error), type="negative")
            return
        finally:
            self._spinner.set_visibility(False)
        if not self._differences.is_deleted:
            with self._differences:
                _differences(diff)


def _differences(diff: DatasetDiff) -> None:
    parts = {
        "added": diff.added,
        "removed": diff.removed,
        "changed (other steps, rewards or another end)": diff.changed,
    }
    if not any(parts.values()):
        ui.label("Nothing: both hold the same.")
    for name, ids in parts.items():
        if ids:
            with ui.expansion(f"{len(ids):,} {name}", value=len(ids) <= SHOWN).classes("w-full").props("dense"):
                with ui.row().classes("w-full gap-x-5 gap-y-2"):
                    for trajectory_id in ids[:SHOWN]:
                        ui.link(trajectory_id, trajectory_address(trajectory_id)).classes("sw-text")
                if len(ids) > SHOWN:
                    ui.label(f"and {len(ids) - SHOWN:,} more").classes("sw-quiet")
