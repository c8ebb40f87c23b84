"""Small things that several pages have."""

from typing import Final

from nicegui import ui

STATUS_COLOUR: Final = {"terminated": "positive", "truncated": "orange-8", "failed": "negative"}


class Tile:
    """A figure with its name and a line about it."""

    def __init__(self, name: str, target: str = "") -> None:
        """`target` is where a click on the name leads."""
        with ui.card().classes("flex-1 gap-0 min-w-36"):
            if target:
                ui.link(name, target).classes("text-sm")
            else:
                ui.label(name).classes("text-sm sw-quiet")
            self._value = ui.label().classes("text-2xl font-semibold")
            self._detail = ui.label().classes("text-xs sw-quiet")

    def show(self, value: str, detail: str) -> None:
        """Fill in the figure and the line."""
        self._value.text, self._detail.text = value, detail


def figure(value: float, form: str) -> str:
    """A number for people, of whom few say nan and inf."""
    return format(value, form).replace("nan", "NaN").replace("inf", "∞")


def heading(text: str) -> ui.label:
    """The name of a part of a page, also for who has it read aloud."""
    return ui.label(text).classes("font-medium").props('role="heading" aria-level="2"')


def status_badge(status: str) -> ui.badge:
    """A trajectory's state."""
    return ui.badge(status, color=STATUS_COLOUR.get(status, "grey")).props("outline")
