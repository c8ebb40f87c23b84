"""The laws of what people say: the trail loses nothing, and undo restores what held."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.dashboard.reading.audit import audit, overruled, undoing
from stepwell.errors import Conflict
from stepwell.pool.readiness import facts_of
from stepwell.types import Annotation

TARGETS = st.sampled_from([("trajectory", "t"), ("step", "s0"), ("step", "s1")])


@st.composite
def said(draw: st.DrawFn) -> Annotation:
    """Anything that the controls can say, and what programs and agents say beside it."""
    target, about = draw(TARGETS)
    match draw(st.sampled_from(["verdict", "tag", "reward", "note", "edit", "event"])):
        case "verdict":
            return Annotation.verdict(target, about, draw(st.sampled_from(["accept", "reject", "clear"])))
        case "tag":
            return Annotation.tag(target, about, draw(st.sampled_from("ab")), present=draw(st.booleans()))
        case "reward":
            part, value = draw(st.sampled_from(["answer", "feedback"])), draw(st.integers(-3, 3))
            return Annotation.reward(target, about, value, part)
        case "note":
            return remark(draw(st.text("xyz", min_size=1)), target, about)
        case "edit":
            text = draw(st.text("xyz", min_size=1))
            return Annotation(target="step", target_id="s0", kind="feedback", name="edit", text=text)
        case _:
            return Annotation(target=target, target_id=about, kind="event", name="user_turn")


def remark(text: str, target: str = "trajectory", about: str = "t") -> Annotation:
    return Annotation(target=target, target_id=about, kind="note", name="note", text=text)


SAID = st.lists(said(), max_size=12)


def standing(notes: list[Annotation]) -> dict[object, object]:
    """What holds, as the pool folds it, and the words that hold."""
    facts = facts_of(notes)
    words = sorted((one.note.target_id, one.note.kind, one.note.text) for one in audit(notes) if one.holds)
    return {
        "verdict": facts.verdict,
        "tags": facts.tags,
        "reward": facts.reward,
        "words": [word for word in words if word[1] in ("note", "feedback", "event") and word[2]],
    }


def undo_all(notes: list[Annotation], own: list[Annotation]) -> list[Annotation]:
    """The log after taking back all of `own`, the newest first."""
    known = {note.id for note in own}
    for done in reversed(own):
        back = undoing(notes, done, known)
        known.add(back.id)
        notes = [*notes, back]
    return notes


@given(SAID, SAID)
def test_undoing_everything_restores_what_held_before(before: list[Annotation], own: list[Annotation]) -> None:
    before = [Annotation.reward("trajectory", "t", 1.0, "environment"), *before]
    assert standing(undo_all([*before, *own], own)) == standing(before)


@given(SAID)
def test_the_trail_is_all_that_was_said_in_order(notes: list[Annotation]) -> None:
    assert [one.note for one in audit(notes)] == notes


@given(SAID)
def test_of_each_place_the_newest_holds_alone_and_remarks_stand_beside_each_other(notes: list[Annotation]) -> None:
    held = [one.note for one in audit(notes) if one.holds]
    newest = {(n.target_id, n.kind, "" if n.kind == "verdict" else n.name): n for n in notes}
    replaced = {"verdict", "tag", "reward", "feedback"}
    assert [n for n in held if n.kind in replaced] == [n for n in notes if n.kind in replaced and n in newest.values()]
    assert [n for n in held if n.kind not in replaced] == [n for n in notes if n.kind not in replaced]


def test_undo_does_not_touch_what_somebody_else_said_since() -> None:
    mine, theirs = Annotation.verdict("trajectory", "t", "accept"), Annotation.verdict("trajectory", "t", "reject")
    with pytest.raises(Conflict, match="somebody else"):
        undoing([mine, theirs], mine, {mine.id})
    beside = Annotation.tag("trajectory", "t", "good")
    assert undoing([mine, beside], mine, {mine.id}).name == "clear"


def test_undo_brings_back_the_verdict_of_somebody_else_that_one_replaced() -> None:
    theirs, mine = (
        Annotation.verdict("trajectory", "t", "reject", "leaked"),
        Annotation.verdict("trajectory", "t", "accept"),
    )
    back = undoing([theirs, mine], mine, {mine.id})
    assert (back.name, back.text) == ("reject", "leaked")
    assert back.id not in (theirs.id, mine.id)


def test_the_only_reward_cannot_be_taken_back() -> None:
    only = Annotation.reward("trajectory", "t", 1.0, "feedback")
    with pytest.raises(Conflict, match="only reward"):
        undoing([only], only, {only.id})


def test_of_two_remarks_undo_takes_back_ones_own_and_the_other_stands() -> None:
    theirs, mine = remark("look at step 3"), remark("why?")
    notes = undo_all([theirs, mine], [mine])
    assert [one.note.text for one in audit(notes) if one.holds] == ["look at step 3"]


@given(SAID, st.data())
def test_only_words_that_somebody_could_not_know_of_are_overruled(notes: list[Annotation], data: st.DataObject) -> None:
    known = data.draw(st.sets(st.sampled_from([note.id for note in notes]))) if notes else set()
    mine = Annotation.verdict("trajectory", "t", "accept")
    verdicts = [note for note in notes if (note.target_id, note.kind) == ("t", "verdict")]
    newest = verdicts[-1] if verdicts else None
    expected = None if newest is None or newest.id in known else newest
    assert overruled([*notes, mine], mine, known) == expected


def test_a_remark_overrules_nobody() -> None:
    theirs, mine = remark("look at step 3"), remark("why?")
    assert overruled([theirs, mine], mine, set()) is None
