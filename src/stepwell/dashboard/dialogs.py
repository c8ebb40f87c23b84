"""Questions that a page asks before it goes on, as dialogs that the keyboard answers."""

import math
from typing import Any, Final

from nicegui import ui

_SUBMITTED: Final = "keydown.enter.prevent"
_SUBMITTED_BESIDE_LINES: Final = "keydown.ctrl.enter.prevent"
_ITS_VALUE: Final = "(event) => emit(event.target.value)"
"""What is in the field when the key is pressed, whether or not the server has heard of it."""


async def confirmed(question: str, yes: str) -> bool:
    """Ask whether to go on; `yes` is what the button that does it says."""
    with ui.context.client.layout, ui.dialog() as dialog, ui.card():
        ui.label(question).classes("sw-text")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps autofocus")
            ui.button(yes, color="negative", on_click=lambda: dialog.submit(True)).props("no-caps")
    return bool(await _answer(dialog))


async def told(title: str, label: str, go: str, *, text: str = "", lines: bool = False) -> str | None:
    """Ask for words: one line, sent by Enter, or several `lines`, sent by Ctrl+Enter. None: it was cancelled."""
    with ui.context.client.layout, ui.dialog() as dialog, ui.card().classes("w-full"):
        _title(title)
        field = ui.textarea(label, value=text) if lines else ui.input(label, value=text)
        field.props("autofocus outlined autogrow" if lines else "autofocus outlined").classes("w-full")
        keys = _SUBMITTED_BESIDE_LINES if lines else _SUBMITTED
        field.on(keys, lambda event: dialog.submit(event.args), js_handler=_ITS_VALUE)
        _buttons(dialog, f"{go} (Ctrl+Enter)" if lines else go, lambda: dialog.submit(field.value))
    answer = await _answer(dialog)
    return str(answer).strip() or None if answer is not None else None


async def numbered(title: str, label: str, go: str) -> float | None:
    """Ask for a number until one is given. None: it was cancelled."""
    with ui.context.client.layout, ui.dialog() as dialog, ui.card().classes("w-full"):
        _title(title)
        field = ui.number(label).props("autofocus outlined step=any").classes("w-full")

        def submit(given: object) -> None:
            value = _number(given)
            if value is None:
                field.props('error error-message="Give a finite number, such as 0.5"')
            else:
                dialog.submit(value)

        field.on(_SUBMITTED, lambda event: submit(event.args), js_handler=_ITS_VALUE)
        _buttons(dialog, go, lambda: submit(field.value))
    answer = await _answer(dialog)
    return None if answer is None else float(answer)


def _number(given: object) -> float | None:
    try:
        value = float(str(given))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _title(text: str) -> None:
    ui.label(text).classes("font-medium sw-text").props('role="heading" aria-level="2"')


def _buttons(dialog: ui.dialog, go: str, submit: object) -> None:
    with ui.row().classes("w-full justify-end"):
        ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
        ui.button(go, on_click=submit).props("no-caps")


async def _answer(dialog: ui.dialog) -> Any:
    """What was submitted; None if it was left by Escape. The dialog is gone afterwards."""
    dialog.open()
    try:
        return await dialog
    finally:
        if not dialog.is_deleted:
            dialog.delete()
