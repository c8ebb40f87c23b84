"""A dataset as a file that the browser downloads."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from nicegui import ui

from stepwell.dashboard.reading.datasets import FORMATS, VIEWS, Export, write
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading
from stepwell.errors import StepwellError
from stepwell.pool.archive import Written
from stepwell.pool.frozen import DatasetInfo

_SHOWN_EVERY: Final = 0.3
"""Seconds between two looks at how far the file is."""


class Exporting:
    """The choice of view and format, and the button, drawn in the current slot."""

    def __init__(self, visit: Visit, dataset: DatasetInfo) -> None:
        """Draw them for `dataset`."""
        self._visit = visit
        self._dataset = dataset
        self._rows = 0
        with ui.card().classes("w-full gap-2"):
            heading("Download")
            with ui.row().classes("w-full items-center gap-2"):
                self._view = ui.select(dict(VIEWS), label="What is in it", value="rl")
                self._format = ui.select(dict(FORMATS), label="Format", value="parquet")
                for select in (self._view, self._format):
                    select.props("outlined dense").classes("min-w-40 max-w-full")
                self._go = ui.button("Download", icon="download", on_click=self._export).props("outline no-caps")
                self._spinner = ui.spinner(size="sm")
                self._spinner.set_visibility(False)
            self._state = ui.label().classes("text-sm").props('aria-live="polite"')

    async def _export(self) -> None:
        export = Export(dataset=self._dataset, format=self._format.value, view=self._view.value)
        folder = TemporaryDirectory(prefix="stepwell-export-")
        ui.context.client.on_delete(folder.cleanup)  # the browser may fetch it until the tab is closed
        path = Path(folder.name) / f"export.{export.format}"
        self._rows = 0
        self._go.disable()
        self._spinner.set_visibility(True)
        ticking = ui.timer(_SHOWN_EVERY, self._tell)
        try:
            written = await asyncio.to_thread(write, self._visit.pool, export, path, self._hear)
        except (StepwellError, OSError) as error:  # a full disk, say
            folder.cleanup()
            self._state.text = f"It cannot be written: {error}"
            return
        finally:
            ticking.cancel()
            self._spinner.set_visibility(False)
            self._go.enable()
        self._state.text = _summary(written)
        if written.rows:
            ui.download.file(path, export.file_name)

    def _hear(self, rows: int) -> None:
        self._rows = rows  # from the thread that writes

    def _tell(self) -> None:
        self._state.text = f"{self._rows:,} rows written"


def _summary(written: Written) -> str:
    skipped = "; ".join(f"left out: {count:,}, {reason}" for reason, count in written.skipped)
    if not written.rows:
        return "Nothing of it can be written this way. " + skipped
    return f"{written.rows:,} rows, {written.bytes:,} bytes. {skipped}".strip()
