"""What a selection comes to: how much its conditions want, and what each of its rules leaves out, with examples."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Final, get_args

from pydantic import ValidationError

from stepwell.curation.selection import Selection
from stepwell.dashboard.moments import TIMES, calendar
from stepwell.errors import InvalidRequest
from stepwell.pool.base import Pool, TrajectorySummary
from stepwell.pool.lease import ReadyCount, Unit
from stepwell.pool.sifting import enough
from stepwell.types import Group, Verdict

SAMPLE: Final = 200
"""Trajectories to which rules are applied at once: those of the newest policy."""
EXAMPLES: Final = 5
"""Of what a rule leaves out, how many are named."""
_STRIDE: Final = 8
"""Units after which it is said how far it has come."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What the conditions of a selection want."""

    matching: int
    """Trajectories for which they hold, whatever their state."""
    ready: ReadyCount
    """What a new consumer would be offered of those."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What one rule leaves out."""

    trajectories: int
    reasons: tuple[tuple[str, int], ...]
    """(reason, trajectories), the most frequent first."""
    examples: tuple[tuple[str, str], ...]
    """(id, reason) of the first `EXAMPLES`."""


@dataclass(frozen=True, slots=True)
class Sifting:
    """What the rules of a selection do to the units that were looked at."""

    seen: ReadyCount
    left: ReadyCount
    """What is handed over of them."""
    by_rule: tuple[Dropped, ...]
    """One for each rule, in their order; each sees only what those before it left."""
    with_their_units: int
    """Trajectories that no rule leaves out, of units of which too little remains."""


def read_reach(pool: Pool, selection: Selection, unit: Unit) -> Reach:
    """Count; no rule is applied."""
    return Reach(pool.count(selection), pool.count_ready(selection, unit=unit))


def sift(pool: Pool, selection: Selection, unit: Unit, most: int | None = None) -> Iterator[Sifting]:
    """Apply the rules to what is ready, of the newest policy first; says now and then, and last, what came of it.

    `most`: stop once so many trajectories were looked at; None: look at all.
    """
    sieve = _Sieve(selection)
    for number, group in enumerate(pool.scan_ready(selection, unit=unit, limit=most), 1):
        sieve.add(group)
        if most is not None and sieve.seen.trajectories >= most:
            break
        if number % _STRIDE == 0:
            yield sieve.result()
    yield sieve.result()


@dataclass(slots=True)
class _Tally:
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, str]] = field(default_factory=list)


class _Sieve:
    """Counts what rules do, unit by unit."""

    def __init__(self, selection: Selection) -> None:
        self._rules = selection.rules
        self._tallies = [_Tally() for _ in selection.rules]
        self.seen = ReadyCount(0, 0)
        self._left = ReadyCount(0, 0)
        self._with_their_units = 0

    def add(self, group: Group) -> None:
        """As the feed does it: `Selection.sift`, and then whether enough is left of the unit."""
        left = group.trajectories
        for rule, tally in zip(self._rules, self._tallies, strict=True):
            refused = rule.refused(left)
            tally.reasons.update(refused.values())
            room = EXAMPLES - len(tally.examples)
            tally.examples += [(left[place].info.id, reason) for place, reason in list(refused.items())[:room]]
            left = tuple(one for place, one in enumerate(left) if place not in refused)
        self.seen = _more(self.seen, len(group.trajectories))
        if left and enough(group, len(left)):
            self._left = _more(self._left, len(left))
        else:
            self._with_their_units += len(left)

    def result(self) -> Sifting:
        """What was counted so far."""
        by_rule = tuple(
            Dropped(tally.reasons.total(), tuple(tally.reasons.most_common()), tuple(tally.examples))
            for tally in self._tallies
        )
        return Sifting(self.seen, self._left, by_rule, self._with_their_units)


def _more(count: ReadyCount, members: int) -> ReadyCount:
    return ReadyCount(count.units + 1, count.trajectories + members)


def to_judge(selection: Selection, *, judged: bool) -> Selection:
    """What the conditions of `selection` want and nobody has judged yet; or, `judged`, also what has a verdict.

    That consumers leave rejected ones out, unless they are asked for, is no reason not to judge them again.
    """
    usual = selection.verdicts == Selection().verdicts
    wanted = get_args(Verdict) if usual else selection.verdicts
    left = wanted if judged else tuple(verdict for verdict in wanted if verdict == "clear")
    return selection.model_copy(update={"verdicts": left, "rules": ()})


def place_of(pool: Pool, trajectory_id: str) -> int | None:
    """Cursor of a trajectory, by which lists go on; None if there is none of that id."""
    named = Selection(trajectory_ids=(trajectory_id,), verdicts=get_args(Verdict))
    return next((cursor for cursor, _ in pool.trajectories(named, limit=1)), None)


def next_of(pool: Pool, selection: Selection, before: int | None) -> tuple[int, TrajectorySummary] | None:
    """The newest trajectory that is wanted, or that was opened before the cursor `before`."""
    return next(iter(pool.trajectories(selection, before=before, limit=1)), None)


def written(selection: Selection) -> str:
    """A selection as it is in a deep link: JSON of what is not as by default; empty for the default."""
    values = selection.written()
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")) if values else ""


def read_selection(text: str, zone: tzinfo) -> Selection:
    """A selection from a deep link, without times that `zone` has not. Raises InvalidRequest for a wrong one."""
    try:
        given = Selection.model_validate_json(text or "{}")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "selection"
        raise InvalidRequest(f"{where}: {first['msg']}") from error
    times = {name: getattr(given, name) for name in TIMES}
    wrong = [name for name, at in times.items() if at is not None and calendar(at, zone) is None]
    return given.model_copy(update=dict.fromkeys(wrong))


def described(selection: Selection) -> Sequence[tuple[str, str]]:
    """(name, value) of all that a selection says, for people."""
    values = json.loads(written(selection) or "{}")
    rules = values.pop("rules", [])
    lines = [(name.replace("_", " "), _plain(value)) for name, value in values.items()]
    for rule in rules:
        use = rule.pop("use")
        settings = ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in rule.items())
        lines.append((f"rule {use.replace('_', ' ')}", settings or "as by default"))
    return lines


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
