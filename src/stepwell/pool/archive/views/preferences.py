"""The view `preferences`: pairs of answers of which one is better, by the rewards of a group or by a person's edit."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec

from stepwell.pool.archive.conversation import (
    Conversation,
    MessageRow,
    Reads,
    chat_request,
    message_rows,
    said,
    tool_rows,
    writable,
)
from stepwell.pool.archive.entries import Entry
from stepwell.pool.archive.lines import main_line
from stepwell.pool.archive.table import Row
from stepwell.rendering.messages import Message
from stepwell.types import Step, Trajectory

Origin = Literal["reward", "edit"]


class PairRow(Row, frozen=True, kw_only=True, omit_defaults=True):
    """Pairs of answers of agents to the same messages, one of them better."""

    prompt: list[MessageRow]
    """What both have in common."""
    chosen: list[MessageRow]
    """How the better one goes on from there: the assistant first, and last."""
    rejected: list[MessageRow]
    """How the worse one goes on."""
    tools: Annotated[Any, msgspec.Meta(extra={"json": True})] = None
    """What the policy could call, as JSON text in Parquet; null if nothing."""
    origin: str
    """`reward` or `edit`."""
    group_id: str | None = None
    chosen_id: str
    """Trajectory of the better one; for an edit the annotation."""
    rejected_id: str
    """Trajectory of the worse one; for an edit the step."""
    chosen_reward: float | None = None
    rejected_reward: float | None = None

    def weight(self) -> int:
        """See `Row`."""
        return 512 + sum(len(m.content) + 256 for m in (*self.prompt, *self.chosen, *self.rejected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """The view `preferences`."""

    origins: frozenset[Origin] = frozenset(("reward", "edit"))
    """`reward`: the best and the worst trajectory of each group. `edit`: each answer that feedback called `edit` writes
    anew, against itself."""
    margin: float = 0.0
    """The rewards of a pair must differ by more than this."""
    reads: Reads = chat_request
    """How requests are understood."""

    @property
    def row(self) -> type[Row]:
        """See `View`."""
        return PairRow

    def rows(self, entries: Iterable[Entry], skipped: Counter[str]) -> Iterator[Row]:
        """See `View`. The entries of a group must follow each other."""
        for group_id, members in groupby((e for e in entries if e.trajectory), key=_group_id):
            if group_id is None or "reward" not in self.origins:
                for entry in members:
                    yield from self._edits(entry, skipped)
                continue
            known = list(members)
            yield from self._best_and_worst([e.trajectory for e in known if e.trajectory], skipped)
            for entry in known:
                yield from self._edits(entry, skipped)

    def _best_and_worst(self, group: Sequence[Trajectory], skipped: Counter[str]) -> Iterator[PairRow]:
        rewarded = [(t.reward, t) for t in group if t.reward is not None]
        if len(rewarded) < 2:
            skipped["group with less than two rewards"] += 1
            return
        (high, best), (low, worst) = max(rewarded, key=lambda r: r[0]), min(rewarded, key=lambda r: r[0])
        if not high - low > self.margin:
            skipped["rewards within the margin"] += 1
            return
        ids = {"origin": "reward", "group_id": best.info.group_id, "chosen_id": best.info.id}
        rewards = {"rejected_id": worst.info.id, "chosen_reward": high, "rejected_reward": low}
        yield from _pair(self._whole(best), self._whole(worst), skipped, **ids, **rewards)

    def _whole(self, trajectory: Trajectory) -> Conversation | None:
        line = main_line(trajectory.steps)
        return said(line[-1], self.reads) if line else None

    def _edits(self, entry: Entry, skipped: Counter[str]) -> Iterator[PairRow]:
        if entry.trajectory is None or "edit" not in self.origins:
            return
        for step, (note_id, text) in _edited(entry, entry.trajectory):
            asked, answered = self.reads(step), said(step, self.reads)
            better = asked.with_answer(Message(role="assistant", content=text)) if asked else None
            group_id = entry.trajectory.info.group_id
            yield from _pair(
                better, answered, skipped, origin="edit", group_id=group_id, chosen_id=note_id, rejected_id=step.id
            )


def _group_id(entry: Entry) -> str | None:
    return entry.trajectory.info.group_id if entry.trajectory else None


def _edited(entry: Entry, trajectory: Trajectory) -> Iterator[tuple[Step, tuple[str, str]]]:
    """Each step that was edited with the newest edit; an edit of a trajectory is one of its last answer."""
    steps = {step.id: step for step in trajectory.steps}
    last = main_line(trajectory.steps)[-1:]
    edits: dict[str, tuple[str, str]] = {}
    for note in entry.notes:
        if note.kind == "feedback" and note.name == "edit":
            place = note.target_id if note.target == "step" else last[0].id if last else ""
            edits[place] = (note.id, note.text)  # an empty text takes an edit back
    return ((steps[place], edit) for place, edit in edits.items() if place in steps and edit[1])


def _pair(
    chosen: Conversation | None, rejected: Conversation | None, skipped: Counter[str], **columns: Any
) -> Iterator[PairRow]:
    if chosen is None or rejected is None or not (writable(chosen) and writable(rejected)):
        skipped["no messages of text"] += 1
        return
    common = _common(chosen.messages, rejected.messages)
    better, worse = chosen.messages[common:], rejected.messages[common:]
    if not (common and better and worse and better[0].role == worse[0].role == "assistant"):
        skipped["answers that part nowhere, or not at an answer"] += 1
        return
    yield PairRow(
        prompt=message_rows(chosen.messages[:common]),
        chosen=message_rows(better),
        rejected=message_rows(worse),
        tools=tool_rows(chosen.tools),
        **columns,
    )


def _common(left: Sequence[Message], right: Sequence[Message]) -> int:
    """How many leading messages are equal."""
    pairs = zip(left, right, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
