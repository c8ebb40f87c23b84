"""A prefix tree that one can walk: its segments as bars, as wide as their tokens and as high as their rows.

Markup by hand, as in `tokens`. However large the tree is, a picture has few bars: neighbours that would be too thin to
see are one, and who follows it sees them larger. Each bar is a link to what it shows, so that one can walk by keyboard
and send on where one is.
"""

import html
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from stepwell.dashboard.reading.optimisation import Forest
from stepwell.dashboard.tokens import Decoders

HEIGHT: Final = 600
"""Pixels of a picture."""
_THIN: Final = 1 / 150
"""Share of the height below which neighbours become one bar."""
_NARROW: Final = 1 / 200
"""Share of the width below which what goes on from a segment is one bar."""
MOST_BARS: Final = 600
"""What would follow after so many is not drawn one by one."""
_WORDS: Final = 24
"""Tokens of a bar that are decoded."""
_WIDE: Final = 0.04
"""Share of the width from which a bar has words."""

_COLOURS: Final = (
    ("#dbeafe", "#172554"),
    ("#bfdbfe", "#172554"),
    ("#93c5fd", "#172554"),
    ("#2563eb", "#ffffff"),
    ("#1d4ed8", "#ffffff"),
    ("#1e3a8a", "#ffffff"),
)
"""Background and words, the more rows the darker; readable whatever the page's colours are."""
_MERGED: Final = ("repeating-linear-gradient(45deg, #e5e7eb 0 6px, #d1d5db 6px 12px)", "#111827")

STYLE: Final = """
.sw-icicle { position: relative; width: 100%; overflow: hidden; }
.sw-icicle a { position: absolute; box-sizing: border-box; overflow: hidden; border: 1px solid rgba(255,255,255,.7);
  font-size: 11px; line-height: 1.2; padding: 1px 4px; text-decoration: none; white-space: nowrap;
  text-overflow: ellipsis; min-width: 2px; border-radius: 2px; }
.sw-icicle a:hover, .sw-icicle a:focus-visible { outline: 2px solid #f59e0b; outline-offset: -2px; z-index: 1; }
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a tree somebody looks: at neighbouring segments. It stays right while the tree grows."""

    step: str
    """Id of a step whose row goes through the first of them."""
    token: int
    """A position of that row in the first of them."""
    siblings: int = 1
    """How many of those that follow the same tokens."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Place | None":
        """That of a deep link; None if it has none that makes sense."""
        token, siblings = query.get("token", ""), query.get("siblings", "1")
        if not query.get("step") or not all(text.isascii() and text.isdecimal() for text in (token, siblings)):
            return None
        return cls(query["step"], int(token[:18]), max(int(siblings[:18]), 1))

    @property
    def query(self) -> dict[str, object]:
        """As a deep link has it."""
        more = {"siblings": self.siblings} if self.siblings > 1 else {}
        return {"step": self.step, "token": self.token, **more}


@dataclass(frozen=True, slots=True)
class Bar:
    """One segment, or neighbours as one. Places and sizes are shares of the picture."""

    segments: tuple[int, ...]
    merged: int
    """Segments that this bar stands for; 0: it is one segment."""
    left: float
    width: float
    top: float
    height: float


def shown(forest: Forest, place: Place | None) -> tuple[int, ...]:
    """The segments at a place; all that begin rows without one, or if it leads nowhere."""
    everything = forest.families.get(-1, ())
    if place is None or place.step not in forest.numbers:
        return everything
    segment = forest.tree.leaves[forest.numbers[place.step]]
    while forest.tree.segments[segment].depth > place.token:
        segment = forest.tree.segments[segment].parent
    family = forest.families[forest.tree.segments[segment].parent]
    at = family.index(segment)
    return family[at : at + place.siblings]


def place_of(forest: Forest, segments: Sequence[int]) -> Place:
    """Where these neighbours are."""
    first = segments[0]
    step = forest.rows[forest.first[first]].step_id
    return Place(step, forest.tree.segments[first].depth, len(segments))


def bars(forest: Forest, segments: Sequence[int]) -> list[Bar]:
    """The picture of neighbouring segments with all that goes on from them, level by level."""
    return _Picture(forest, segments).drawn() if segments else []


class _Picture:
    def __init__(self, forest: Forest, segments: Sequence[int]) -> None:
        self._forest = forest
        self._segments = tuple(segments)
        self._rows = sum(forest.through[number] for number in segments)
        self._depth = forest.tree.segments[segments[0]].depth
        self._extent = max(forest.reach[number] for number in segments) - self._depth

    def drawn(self) -> list[Bar]:
        made: list[Bar] = []
        waiting = deque([(self._segments, 0.0)])
        while waiting:
            family, top = waiting.popleft()
            full = len(made) + len(waiting) >= MOST_BARS
            for run in [family] if full or self._narrow(family) else self._runs(family):
                following = self._forest.families.get(run[0], ())
                bar = self._bar(run, top, as_one=len(run) > 1 or bool(full and following))
                made.append(bar)
                if following and not bar.merged:
                    waiting.append((following, top))
                top += bar.height
        return made

    def _narrow(self, family: Sequence[int]) -> bool:
        return len(family) > 1 and self._reach(family) < _NARROW * self._extent

    def _runs(self, family: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Each segment that is thick enough by itself; the others in runs that are."""
        run: list[int] = []
        for segment in family:
            if self._height([segment]) >= _THIN:
                if run:
                    yield tuple(run)
                    run = []
                yield (segment,)
                continue
            run.append(segment)
            if self._height(run) >= _THIN:
                yield tuple(run)
                run = []
        if run:
            yield tuple(run)

    def _bar(self, run: tuple[int, ...], top: float, *, as_one: bool) -> Bar:
        segments = self._forest.tree.segments
        first = segments[run[0]]
        tokens = self._reach(run) if as_one else first.stop - first.start
        left = (first.depth - self._depth) / self._extent
        within = sum(_subtree(self._forest, number) for number in run) if as_one else 0
        return Bar(run, within, left, tokens / self._extent, top, self._height(run))

    def _height(self, run: Sequence[int]) -> float:
        return sum(self._forest.through[number] for number in run) / self._rows

    def _reach(self, run: Sequence[int]) -> int:
        return max(self._forest.reach[number] for number in run) - self._forest.tree.segments[run[0]].depth


def _subtree(forest: Forest, segment: int) -> int:
    """Segments of its subtree, itself among them: they stand in pre-order."""
    end, number = forest.tree.segments[segment].end, segment
    while number < len(forest.tree.segments) and forest.tree.segments[number].start < end:
        number += 1
    return number - segment


def picture(forest: Forest, drawn: Sequence[Bar], decoders: Decoders, link: Callable[[Place], str]) -> str:
    """The bars as HTML; `link` gives the address of a place."""
    made = "".join(_bar_html(forest, bar, number, decoders, link) for number, bar in enumerate(drawn))
    return f'<div class="sw-icicle" style="height: {HEIGHT}px">{made}</div>'


def _bar_html(forest: Forest, bar: Bar, number: int, decoders: Decoders, link: Callable[[Place], str]) -> str:
    rows = sum(forest.through[segment] for segment in bar.segments)
    if bar.merged:
        colours, says = _MERGED, f"{bar.merged:,} more"
        told = f"{bar.merged:,} more segments, {rows:,} rows"
    else:
        segment = forest.tree.segments[bar.segments[0]]
        tokens = segment.stop - segment.start
        colours = _COLOURS[min(int(len(_COLOURS) * log(rows + 1) / log(len(forest.rows) + 1)), len(_COLOURS) - 1)]
        told = f"{tokens:,} tokens from position {segment.depth:,}, in {rows:,} of {len(forest.rows):,} rows"
        says = words(forest, bar.segments[0], decoders, _WORDS) if bar.width >= _WIDE else ""
        says = says or f"{tokens:,} tokens"
    if bar.width < _WIDE or bar.height * HEIGHT < 11:
        says = ""
    place = f"left: {bar.left:.3%}; width: {bar.width:.3%}; top: {bar.top:.3%}; height: {bar.height:.3%}"
    look = f"background: {colours[0]}; color: {colours[1]}"
    address = html.escape(link(place_of(forest, bar.segments)))
    return (
        f'<a href="{address}" data-bar="{number}" title="{told}" aria-label="{told}" style="{place}; {look}">'
        f"{html.escape(says)}</a>"
    )


def words(forest: Forest, segment: int, decoders: Decoders, most: int) -> str:
    """The first tokens of a segment as text; empty if nobody can read them."""
    decode = decoders.get(forest.rows[forest.first[segment]].model)
    own = forest.tree.segments[segment]
    return decode(forest.tree.ids[own.start : min(own.stop, own.start + most)]) if decode else ""
