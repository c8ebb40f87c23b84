"""What was said of a trajectory, in order: what of it holds, and what takes the last word back.

The log only grows, so nothing is ever erased: to undo is to say again what held before.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stepwell.errors import Conflict
from stepwell.types import Annotation, Verdict, new_id

_REMARKS: Final = (("note", ""), ("event", ""), ("feedback", "comment"))
"""(kind, name; empty: any) of what stands beside what was said before, and does not take its place."""

_Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Said:
    """One entry of an audit trail."""

    note: Annotation
    holds: bool
    """Whether nothing newer took its place."""


def audit(notes: Sequence[Annotation]) -> tuple[Said, ...]:
    """Each of `notes`, which are in the order in which they arrived, and whether it holds."""
    holding: dict[_Place, list[str]] = defaultdict(list)
    for note in notes:
        held = holding[_place(note)]
        if _takes_back(note):
            del held[-1:]
        elif _is_remark(note):
            held.append(note.id)
        else:
            held[:] = [note.id]
    standing = {note_id for held in holding.values() for note_id in held}
    return tuple(Said(note, note.id in standing) for note in notes)


def undoing(notes: Sequence[Annotation], done: Annotation, own: Collection[str]) -> Annotation:
    """What to append so that what held before `done` holds again.

    Args:
        notes: all that was said of the trajectory, `done` included, oldest first.
        done: what is to be undone.
        own: ids of what the same person said; newer words of others are theirs to take back.

    Raises:
        Conflict: somebody else has spoken since, or there is nothing that would restore what held.
    """
    same = [note for note in notes if _place(note) == _place(done)]
    ids = [note.id for note in same]
    place = ids.index(done.id)
    if not set(ids[place:]) <= set(own):
        raise Conflict("somebody else has judged this since; undoing would undo their word, so say what should hold")
    before = None if _is_remark(done) else next(reversed(same[:place]), None)
    restored = before or _nothing(notes, done)
    return replace(restored, id=new_id("note"), created_at=time.time())


def overruled(notes: Sequence[Annotation], said: Annotation, known: Collection[str]) -> Annotation | None:
    """The newest word whose place `said` took, if whoever said it could not know of it.

    Args:
        notes: all that was said of the trajectory, `said` included, oldest first.
        said: what took its place.
        known: ids of what was shown to whoever said it, or is theirs.
    """
    if _is_remark(said):
        return None
    same = [note for note in notes if _place(note) == _place(said)]
    before = next(reversed(same[: same.index(said)]), None)
    return None if before is None or before.id in known else before


def _nothing(notes: Sequence[Annotation], done: Annotation) -> Annotation:
    """Says what held while nothing was said."""
    match done.kind:
        case "verdict":
            clear: Verdict = "clear"
            return replace(done, name=clear, text="")
        case "tag":
            return replace(done, value=0.0)
        case "reward":
            if not any(note.kind == "reward" and _place(note) != _place(done) for note in notes):
                raise Conflict("the only reward of a trajectory cannot be taken back, only replaced by another")
            return replace(done, value=0.0)
        case _:
            return replace(done, text="", value=None)


def _is_remark(note: Annotation) -> bool:
    return (note.kind, note.name) in _REMARKS or (note.kind, "") in _REMARKS


def _takes_back(note: Annotation) -> bool:
    """A remark without words takes the one before it back; an event needs no words."""
    return _is_remark(note) and not note.text and note.kind != "event"


def _place(note: Annotation) -> _Place:
    """What a newer annotation takes the place of."""
    named = "" if note.kind in ("verdict", "end") else note.name
    return note.target_id, note.kind, named
