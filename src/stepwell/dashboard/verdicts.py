"""What a person says of a trajectory: the controls by button and key, undo, and the trail of all that was said.

One `Judge` belongs to one tab and knows what was said from it, so that undo takes back one's own words alone. Pages
draw it where they show a trajectory: `controls` and `trail`, then `show` whenever the trajectory has changed.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nicegui import ui
from nicegui.events import KeyEventArguments

from stepwell.dashboard.dialogs import numbered, told
from stepwell.dashboard.reading.audit import Said, audit, overruled, undoing
from stepwell.dashboard.reading.trajectory import Head
from stepwell.dashboard.tables import Table, text
from stepwell.dashboard.visit import Visit
from stepwell.errors import Conflict, InvalidRequest, NotFound, StepwellError
from stepwell.pool.base import Pool
from stepwell.rendering.wire import displayed
from stepwell.types import Annotation, Step

REWARD_PART: Final = "feedback"
"""The reward part that a person gives, as the gateway calls it too."""
_VERDICTS: Final = {
    "accept": ("check_circle", "positive", "accepted"),
    "reject": ("cancel", "negative", "rejected"),
    "clear": ("radio_button_unchecked", "grey", "no verdict"),
}
"""(icon, its colour, what it is called)."""

_COLUMNS: Final = (
    text("at", "When"),
    text("about", "About"),
    text("said", "Said"),
    text("words", "Words") | {"classes": "sw-words"},
    text("holds", "Holds"),
)
_PAGE: Final = 50
"""Lines of the trail that are shown at once."""

Act = Callable[[], Awaitable[None]]
Make = Callable[[Pool, Head], Awaitable[Annotation | None]]
"""Makes what is to be said of a trajectory, asking for words if it needs any; None: nothing after all."""


@dataclass(frozen=True, slots=True)
class Control:
    """A button and its key."""

    key: str
    label: str
    icon: str
    act: Act
    writes: bool = False
    """Whether it is only for those who may change something."""
    asks: bool = False
    """Whether it asks for words; keys that are pressed before it has them are none of ours."""


@dataclass(frozen=True, slots=True)
class _Saying:
    """What can be said, by a control."""

    key: str
    label: str
    icon: str
    make: Make
    asks: bool = False


class Judge:
    """What one tab says of trajectories."""

    def __init__(self, visit: Visit, changed: Callable[[str], Awaitable[None]], *more: Control) -> None:
        """`changed` hears the id of a trajectory of which something was said; `more` stands beside the controls."""
        self._visit = visit
        self._changed = changed
        self._client = ui.context.client
        said = (
            Control(one.key, one.label, one.icon, partial(self._tell, one.make), writes=True, asks=one.asks)
            for one in _SAYINGS
        )
        self._controls = (*said, Control("u", "Undo", "undo", self._undo, writes=True), *more)
        self._done: list[tuple[str, Annotation]] = []  # what was said from this tab of which trajectory, and not undone
        self._own: set[str] = set()
        self._turn = asyncio.Lock()  # keys are pressed faster than a pool answers, and each counts, in order
        self._asking = False
        self._open: bool | None = None
        self._shown: Head | None = None

    def controls(self) -> None:
        """Draw the buttons, and listen for their keys, in the current slot."""
        self._standing = ui.row().classes("items-center gap-2").props('aria-live="polite"')
        with ui.row().classes("gap-1").props('role="toolbar" aria-label="Judge this trajectory"'):
            for control in self._controls:
                self._button(control)
        ui.keyboard(self._on_key, repeating=False, ignore=["input", "select", "textarea"])

    def trail(self, *, shown: bool) -> None:
        """Draw the trail of all that was said, in the current slot: `shown`, or as somebody has left it."""
        value = shown if self._open is None else self._open
        with ui.expansion("All that was said of it", value=value).classes("w-full").props("dense") as panel:
            self._trail = Table(_COLUMNS, key="id", label="All that was said of it", page=_PAGE, sortable=False)
            self._trail.props('no-data-label="Nothing was said of it yet."')
        panel.on_value_change(lambda event: setattr(self, "_open", event.value))

    def show(self, head: Head) -> None:
        """What holds of a trajectory, which from now on is the one that is judged."""
        self._shown = head
        summary = head.summary
        self._standing.clear()
        with self._standing:
            icon, colour, name = _VERDICTS[summary.verdict]
            ui.icon(icon, color=colour, size="sm")
            ui.label(name).classes("font-medium")
            ui.label("no reward yet" if summary.reward is None else f"reward {summary.reward:.3g}").classes("text-sm")
            for tag in head.tags:
                ui.label(f"#{tag}").classes("text-sm sw-text")
        places = {step.id: f"step {step.index}" for step in head.steps}
        self._trail.fill([_row(one, places, self._visit) for one in audit(head.notes)])

    def _button(self, control: Control) -> None:
        button = ui.button(
            f"{control.label} ({control.key})", icon=control.icon, on_click=partial(self._press, control)
        )
        button.props(f'outline dense no-caps aria-keyshortcuts="{control.key}"').classes("px-2")
        if control.writes and self._visit.read_only:
            button.disable()
            button.tooltip(self._visit.read_only)

    async def _on_key(self, event: KeyEventArguments) -> None:
        held = event.modifiers
        if not event.action.keydown or held.ctrl or held.alt or held.meta or self._asking:
            return
        for control in self._controls:
            if control.key == event.key.name.lower():
                await self._press(control)

    async def _press(self, control: Control) -> None:
        self._asking = self._asking or control.asks
        async with self._turn:
            try:
                if control.writes and self._visit.read_only:
                    self._notify(self._visit.read_only, "warning")
                else:
                    await control.act()
            except StepwellError as error:
                self._notify(str(error), "negative")
            finally:
                self._asking = self._asking and not control.asks

    async def _tell(self, make: Make) -> None:
        head = self._shown
        if head is None:
            return
        with self._client:
            note = await make(self._visit.pool, head)
        if note is not None:
            other = await asyncio.to_thread(self._write, head, note)
            self._done.append((_about(head), note))
            self._own.add(note.id)
            if other is not None:
                self._notify(f"Somebody said {_spoken(other)} just now; yours holds.", "warning")
            await self._changed(_about(head))

    def _write(self, head: Head, note: Annotation) -> Annotation | None:
        """Write it; gives what somebody else said meanwhile and does not hold any more."""
        self._visit.pool.put(note)
        known = self._own | {one.id for one in head.notes}
        return overruled(self._visit.pool.notes(_about(head)), note, known)

    async def _undo(self) -> None:
        if not self._done:
            self._notify("Nothing was said from this tab that could be undone.", "info")
            return
        trajectory_id, done = self._done[-1]
        try:
            note = await asyncio.to_thread(self._take_back, trajectory_id, done)
        except (Conflict, NotFound):  # it can never be undone, so what was said before it is next
            self._done.pop()
            raise
        self._done.pop()
        self._own.add(note.id)
        self._notify(f"Undone: {_said(done)}, of {trajectory_id}", "positive")
        await self._changed(trajectory_id)

    def _take_back(self, trajectory_id: str, done: Annotation) -> Annotation:
        note = undoing(self._visit.pool.notes(trajectory_id), done, self._own)
        self._visit.pool.put(note)
        return note

    def _notify(self, text: str, kind: Any) -> None:
        with self._client:
            ui.notify(text, type=kind)


def _about(head: Head) -> str:
    return head.summary.info.id


async def _accept(_: Pool, head: Head) -> Annotation:
    return Annotation.verdict("trajectory", _about(head), "accept")


async def _reject(_: Pool, head: Head) -> Annotation:
    return Annotation.verdict("trajectory", _about(head), "reject")


async def _clear(_: Pool, head: Head) -> Annotation:
    return Annotation.verdict("trajectory", _about(head), "clear")


async def _tag(_: Pool, head: Head) -> Annotation | None:
    label = await told("Give it a tag, or take one away that it has", "Tag", "Tag")
    return Annotation.tag("trajectory", _about(head), label, present=label not in head.tags) if label else None


async def _note(_: Pool, head: Head) -> Annotation | None:
    text = await told("A remark for those who look later", "Note", "Note", lines=True)
    own = Annotation(target="trajectory", target_id=_about(head), kind="note", name="note", text=text or "")
    return own if text else None


async def _edit(pool: Pool, head: Head) -> Annotation | None:
    """As the gateway takes it: of a conversation, its last answer is edited."""
    last = next((step for step in reversed(head.steps) if not step.side), None)
    if last is None:
        raise InvalidRequest("it has no answer yet that could be edited")
    given = answer_text(await asyncio.to_thread(pool.step, last.id))
    text = await told(
        f"The answer of step {last.index} as it should have been", "Answer", "Keep", text=given, lines=True
    )
    own = Annotation(target="step", target_id=last.id, kind="feedback", name="edit", text=text or "")
    return own if text and text != given else None


async def _reward(_: Pool, head: Head) -> Annotation | None:
    value = await numbered(f"The reward part “{REWARD_PART}” of the whole trajectory", "Reward", "Give")
    return Annotation.reward("trajectory", _about(head), value, REWARD_PART) if value is not None else None


_SAYINGS: Final = (
    _Saying("a", "Accept", "check", _accept),
    _Saying("r", "Reject", "close", _reject),
    _Saying("c", "Clear", "remove_done", _clear),
    _Saying("t", "Tag", "label", _tag, asks=True),
    _Saying("n", "Note", "chat", _note, asks=True),
    _Saying("e", "Edit answer", "edit", _edit, asks=True),
    _Saying("w", "Reward", "star", _reward, asks=True),
)
"""In the order of the buttons."""


def answer_text(step: Step) -> str:
    """What the client received, as text."""
    try:
        message = json.loads(step.response) if step.response else {}
    except (ValueError, RecursionError):
        return step.response
    return displayed(message) if isinstance(message, dict) else step.response


def _row(one: Said, places: dict[str, str], visit: Visit) -> dict[str, object]:
    note = one.note
    return {
        "id": note.id,
        "at": visit.time(note.created_at),
        "about": places.get(note.target_id, "a step") if note.target == "step" else "the whole",
        "said": _said(note),
        "words": note.text,
        "holds": "yes" if one.holds else "no longer",
    }


def _spoken(note: Annotation) -> str:
    """As one would say it."""
    return note.name if note.kind == "verdict" else _said(note)


def _said(note: Annotation) -> str:
    """An annotation in a few words."""
    if note.kind == "tag":
        return f"tag {note.name}" if note.value != 0 else f"tag {note.name} taken away"
    if note.kind in ("note", "feedback") and not note.text and note.value is None:
        return f"{note.kind} {note.name} taken back" if note.name != note.kind else f"{note.kind} taken back"
    named = note.kind if note.name == note.kind else f"{note.kind} {note.name}"
    return named if note.value is None else f"{named} {note.value:g}"
